"""Models how long one step of an engine takes, by the number of sequences it works on. Pure."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass

from longboat_runtime.rounds.measurements import StepTimes


@dataclass(frozen=True, slots=True)
class StepCurve:
    """Seconds of a step at `batches` (ascending, at least one sequence) are `seconds` (never descending).

    Interpolated linearly between them; constant below the first, extrapolated along the last segment beyond the last.
    """

    batches: tuple[int, ...]
    seconds: tuple[float, ...]

    @classmethod
    def from_observed(cls, observed: Mapping[int, StepTimes]) -> StepCurve:
        """Makes a monotone curve of what was observed at each batch size.

        Pool adjacent violators (Barlow et al. 1972, Statistical inference under order restrictions), weighted by steps; a pool is
        put at its mean batch size. Raises ValueError without a step.
        """
        pools: list[tuple[int, StepTimes]] = []
        for batch, times in sorted(observed.items()):
            if times.steps < 1:
                continue
            pools.append((batch, times))
            while len(pools) > 1 and _mean(pools[-2][1]) >= _mean(pools[-1][1]):
                (low, before), (high, after) = pools[-2], pools[-1]
                together = before + after
                middle = round((low * before.steps + high * after.steps) / together.steps)
                pools[-2:] = [(middle, together)]
        if not pools:
            raise ValueError("no step was observed")
        return cls(tuple(batch for batch, _ in pools), tuple(_mean(times) for _, times in pools))

    def __call__(self, batch: int) -> float:
        """Returns the seconds of a step that works on `batch` sequences."""
        place = bisect_left(self.batches, batch)
        if place == 0 or len(self.batches) == 1:
            return self.seconds[0]
        place = min(place, len(self.batches) - 1)
        low, high = self.batches[place - 1], self.batches[place]
        share = (batch - low) / (high - low)
        return self.seconds[place - 1] + share * (self.seconds[place] - self.seconds[place - 1])


def _mean(times: StepTimes) -> float:
    return times.seconds / times.steps
