"""What an engine's steps take, by the number of sequences they work on. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StepTimes:
    """So many `steps` took so many `seconds`."""

    steps: int
    seconds: float

    def __add__(self, other: StepTimes) -> StepTimes:
        return StepTimes(self.steps + other.steps, self.seconds + other.seconds)


NO_STEPS = StepTimes(0, 0.0)


class StepClock:
    """Adds up steps by batch size, in `times`. `now` is of one monotonic clock, in seconds.

    A step lasts from the end of the one before to its own end, whatever the engine does meanwhile, so that all steps together
    take as long as the engine was busy; after a rest it lasts from `begin`. Steps that compute prompts count like others.
    """

    def __init__(self) -> None:
        self.times: dict[int, StepTimes] = {}
        self._since: float | None = None

    def begin(self, now: float) -> None:
        """There is work again, after a rest."""
        self._since = now

    def step(self, now: float, batch: int, *, more: bool) -> StepTimes | None:
        """A step has ended that gave `batch` sequences a token; `more` if others follow at once. Returns it if it counts."""
        step = StepTimes(1, now - self._since) if self._since is not None and batch else None
        if step is not None:
            self.times[batch] = self.times[batch] + step if batch in self.times else step
        self._since = now if more else None
        return step

    def interrupt(self) -> None:
        """What the engine does now isn't a step: the next one isn't counted."""
        self._since = None
