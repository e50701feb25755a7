"""Two laws of lengths of different prompts: their distance, the ratio of their means, and how far chance goes. Pure.

Prompts are resampled, not samples: responses to one prompt are alike. Both sides are resampled apart from each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from longboat_runtime.rounds.audit.first_launches import FirstLaunches
from longboat_runtime.rounds.audit.paired_laws import CONFIDENCE, DRAWS, Estimate
from longboat_runtime.rounds.audit.survival import Floats

# Draws whose distribution functions are in memory at a time.
_CHUNK = 25


@dataclass(frozen=True, slots=True)
class Law:
    """Atoms [n] in ascending order of `lengths`, of the `prompts` numbered from 0 and with these `masses`."""

    prompts: npt.NDArray[np.intp]
    lengths: Floats
    masses: Floats

    @classmethod
    def of_samples(cls, groups: Sequence[Sequence[int]]) -> Law:
        """Samples of a prompt each; every sample has the same mass."""
        numbers = np.repeat(np.arange(len(groups)), [len(group) for group in groups])
        lengths = np.array([length for group in groups for length in group], dtype=np.float64)
        return cls._sorted(numbers, lengths, np.ones(len(lengths)))

    @classmethod
    def of_launches(cls, launched: FirstLaunches) -> Law:
        """Every prompt has the same mass. What is modelled is where it probably ends."""
        return cls._sorted(launched.prompts, launched.likely, launched.masses)

    @classmethod
    def _sorted(cls, prompts: npt.NDArray[np.intp], lengths: Floats, masses: Floats) -> Law:
        order = np.argsort(lengths, kind="stable")
        return cls(prompts[order], lengths[order], masses[order])

    @property
    def count(self) -> int:
        """Prompts."""
        return int(self.prompts.max()) + 1

    def draws(self, seed: int) -> Floats:
        """How often each prompt is in each resample [1 + DRAWS, count]: first the data, then the same draws for the same count."""
        count = self.count
        random = np.random.default_rng([seed, count])
        return np.concatenate([np.ones((1, count)), random.multinomial(count, np.full(count, 1 / count), DRAWS)])

    def functions(self, grid: Floats, draws: Floats) -> Floats:
        """The distribution function at the lengths of `grid` [g] in each of `draws` [d, g]."""
        mass = np.cumsum(self.masses * draws[:, self.prompts], axis=1)
        at = np.searchsorted(self.lengths, grid, side="right")
        below: Floats = np.concatenate([np.zeros((len(draws), 1)), mass], axis=1)[:, at]
        return below / mass[:, -1:]

    def log_mean(self, draws: Floats) -> tuple[Floats, Floats]:
        """Log of the mean length and its standard error, by linearisation, in each of `draws`."""
        tokens = np.bincount(self.prompts, self.masses * self.lengths)
        mass = np.bincount(self.prompts, self.masses)
        total, weight = draws @ tokens, draws @ mass
        # A prompt's influence is tokens / total - mass / weight.
        square = (
            draws @ tokens**2 / total**2
            - 2 * (draws @ (tokens * mass)) / (total * weight)
            + draws @ mass**2 / weight**2
        )
        return np.log(total / weight), np.sqrt(np.maximum(square, 0))


def ks_distance(one: Law, other: Law) -> Estimate:
    """The largest difference of the two distribution functions, as in `ks_distance.ks_distance`.

    The value has what chance makes of equal laws taken off; the interval is a band of constant width about the whole difference.
    """
    grid = np.unique(np.concatenate([one.lengths, other.lengths]))
    draws = one.draws(1), other.draws(2)

    def difference(rows: slice) -> Floats:
        return one.functions(grid, draws[0][rows]) - other.functions(grid, draws[1][rows])

    data = difference(slice(0, 1))
    found = [difference(slice(start, start + _CHUNK)) for start in range(1, DRAWS + 1, _CHUNK)]
    chance = np.concatenate([np.abs(each).max(1) for each in found]).mean()
    band = np.quantile(np.concatenate([np.abs(each - data).max(1) for each in found]), CONFIDENCE)
    distance = float(np.abs(data).max())
    low, high = max(0.0, distance - band), min(1.0, distance + band)
    return Estimate(float(np.clip(2 * distance - chance, low, high)), float(low), float(high))


def mean_ratio(one: Law, other: Law) -> Estimate:
    """The mean of `one` by that of `other`, with the symmetric bootstrap-t of the logarithm, as in `mean_ratio.mean_ratio`."""
    (top, top_error), (bottom, bottom_error) = one.log_mean(one.draws(1)), other.log_mean(other.draws(2))
    value, error = top - bottom, np.hypot(top_error, bottom_error)
    spread = np.maximum(error[1:], error[0] / 2)
    deviations = np.divide(np.abs(value[1:] - value[0]), spread, out=np.zeros(DRAWS), where=spread > 0)
    reach = np.quantile(deviations, CONFIDENCE) * error[0]
    return Estimate(*(float(np.exp(end)) for end in (value[0], value[0] - reach, value[0] + reach)))
