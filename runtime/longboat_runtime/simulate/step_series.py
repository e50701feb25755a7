"""Computes what consecutive decode steps of the same sequences take: each has a token more in context than the one before. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil, floor, sqrt

from longboat_runtime.rollout.throughput import EngineModel

# The least that a step takes in an EngineModel.
_LEAST_SECONDS = 1e-6


@dataclass(frozen=True, slots=True)
class StepLine:
    """Seconds of a step of a certain number of sequences by their mean context: linear between `contexts`, of `slope` behind them."""

    contexts: tuple[float, ...]
    seconds: tuple[float, ...]
    slope: float

    @classmethod
    def from_model(cls, model: EngineModel, sequences: int) -> StepLine:
        """Makes the line of the model for so many sequences."""
        contexts: list[float] = [*model.contexts]
        seconds = [model.step_seconds(sequences, sequences * context) for context in contexts]
        slope = (seconds[-1] - seconds[-2]) / (contexts[-1] - contexts[-2]) if len(contexts) > 1 else 0.0
        if slope < 0:
            contexts.append(contexts[-1] + (seconds[-1] - _LEAST_SECONDS) / -slope)
            seconds.append(_LEAST_SECONDS)
            slope = 0.0
        return cls(tuple(contexts), tuple(seconds), slope)

    def pieces(self, context: float) -> Iterator[tuple[int | None, float, float]]:
        """Yields pieces of the steps from a mean context on.

        Each is how many steps it has (None: all others), what the first takes, and by how much each next one takes more.
        """
        if context < self.contexts[0]:
            count = ceil(self.contexts[0] - context)
            yield count, self.seconds[0], 0.0
            context += count
        for place in range(len(self.contexts) - 1):
            low, high = self.contexts[place : place + 2]
            if context < high:
                slope = (self.seconds[place + 1] - self.seconds[place]) / (high - low)
                count = ceil(high - context)
                yield count, self.seconds[place] + slope * (context - low), slope
                context += count
        yield None, self.seconds[-1] + self.slope * (context - self.contexts[-1]), self.slope


@dataclass(frozen=True, slots=True)
class StepSeries:
    """Steps along `line` from a mean `context` on; the first takes `extra` seconds more."""

    line: StepLine
    context: float
    extra: float = 0.0

    def seconds(self, steps: int) -> float:
        """Returns the seconds of the first `steps`."""
        total = self.extra if steps else 0.0
        for count, first, slope in self.line.pieces(self.context):
            taken = steps if count is None else min(steps, count)
            total += _sum(taken, first, slope)
            steps -= taken
            if not steps:
                break
        return total

    def steps(self, seconds: float) -> int:
        """Returns how many steps are done after so many seconds."""
        seconds -= self.extra
        if seconds < 0:
            return 0
        done = 0
        for count, first, slope in self.line.pieces(self.context):
            if count is not None and (whole := _sum(count, first, slope)) <= seconds:
                done, seconds = done + count, seconds - whole
                continue
            return done + _steps(seconds, first, slope)
        raise AssertionError("the last piece has no end")


def _sum(count: int, first: float, slope: float) -> float:
    return count * first + slope * count * (count - 1) / 2


def _steps(seconds: float, first: float, slope: float) -> int:
    """Returns the most steps that take at most `seconds` together: the first takes `first`, each next one `slope` more."""
    if abs(slope) < 1e-15:
        solution = seconds / first
    else:
        linear = first - slope / 2
        solution = (sqrt(max(0.0, linear * linear + 2 * slope * seconds)) - linear) / slope
    steps = max(0, floor(solution))
    while _sum(steps + 1, first, slope) <= seconds:
        steps += 1
    while steps and _sum(steps, first, slope) > seconds:
        steps -= 1
    return steps
