"""Remembers which dry runs the API server has accepted, so that none is repeated for a while. No I/O."""

from __future__ import annotations

from collections.abc import Callable

KEPT_SECONDS = 3600.0


class AcceptedDryRuns:
    """The shapes of objects that were accepted in each namespace, each for an hour; a new process knows none."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        # By namespace: until when each shape counts as accepted, the soonest first.
        self._until: dict[str, dict[str, float]] = {}

    def note(self, namespace: str, shape: str) -> None:
        """Notes that an object of this shape was accepted."""
        now = self._clock()
        # A namespace may be gone, so that nothing is noted in it any more.
        self._until = {name: shapes for name, shapes in self._until.items() if now < next(reversed(shapes.values()))}
        shapes = self._until.setdefault(namespace, {})
        while shapes and shapes[oldest := next(iter(shapes))] <= now:
            del shapes[oldest]
        shapes.pop(shape, None)
        shapes[shape] = now + KEPT_SECONDS

    def has(self, namespace: str, shape: str) -> bool:
        """Whether an object of this shape was accepted within the last hour, and nothing was refused in its namespace since."""
        return self._clock() < self._until.get(namespace, {}).get(shape, float("-inf"))

    def forget(self, namespace: str) -> None:
        """Forgets all shapes of a namespace, where something was refused."""
        self._until.pop(namespace, None)
