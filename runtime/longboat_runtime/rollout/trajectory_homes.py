"""Chooses the engine that draws a trajectory's turns. Pure.

The rule: a trajectory stays with the engine of its first turn, which has its tokens in its prefix cache, while that engine is open. Then it
goes to the open engine with the fewest trajectories, and stays there. Among equals, a hash of their names with the chooser's decides:
recorders choose without knowing of each other, and would otherwise all begin with the same engine.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from hashlib import blake2b

from longboat_runtime.samples import SampleId


class TrajectoryHomes:
    """Keeps the engine of each trajectory, and which engines are open. Engines are known by name."""

    def __init__(self, chooser: str) -> None:
        self._chooser = chooser
        self._home: dict[SampleId, str] = {}
        self._trajectories: Counter[str] = Counter()
        self._open: set[str] = set()

    def open_only(self, engines: Collection[str]) -> None:
        """Opens exactly these engines."""
        self._open = set(engines)

    def open(self, engine: str) -> None:
        self._open.add(engine)

    def close(self, engine: str) -> None:
        """Has trajectories leave `engine` with their next turn, unless it is opened before."""
        self._open.discard(engine)

    def home(self, trajectory: SampleId) -> str | None:
        """Returns the engine for the trajectory's next turn; None if none is open."""
        engine = self._home.get(trajectory)
        if engine in self._open:
            return engine
        if not self._open:
            return None
        chosen = min(self._open, key=lambda name: (self._trajectories[name], self._hash(name)))
        self.ended(trajectory)
        self._home[trajectory] = chosen
        self._trajectories[chosen] += 1
        return chosen

    def ended(self, trajectory: SampleId) -> None:
        """Forgets a trajectory that has no more turns."""
        engine = self._home.pop(trajectory, None)
        if engine is not None:
            self._trajectories[engine] -= 1

    def _hash(self, engine: str) -> bytes:
        return blake2b(f"{self._chooser}/{engine}".encode(), digest_size=8).digest()
