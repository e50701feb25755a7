"""Compares trained lengths with those of audit rounds, where nothing races but the prompts are others. Pure.

An audit round is a short round that doesn't race. Its lengths needn't be estimated, unless an engine was lost, so it checks the estimate of
`length_bias`. But its prompts differ from those they are compared with, so intervals are wide. Prompts are resampled, not samples,
since responses to one prompt are alike. Both sides are resampled independently.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from longboat_runtime.rounds.audit.first_launches import FirstLaunches, complete, together
from longboat_runtime.rounds.audit.length_bias import MIN_PROMPTS
from longboat_runtime.rounds.audit.lengths import PromptLengths
from longboat_runtime.rounds.audit.paired import CHUNK, CONFIDENCE, DRAWS, Estimate
from longboat_runtime.rounds.audit.survival import Floats


@dataclass(frozen=True, slots=True)
class AuditRounds:
    """Says how far the distribution of trained lengths is from that of audit rounds.

    `prompts` is the number of prompts launched in audit rounds, `trained` the number of trained prompts of other rounds. `ks` is in
    [0, 1], `mean_ratio` is the trained mean divided by the launched mean; both are None if either side has fewer than MIN_PROMPTS.
    """

    prompts: int
    trained: int
    ks: Estimate | None
    mean_ratio: Estimate | None


def compare(audited: Sequence[PromptLengths], others: Sequence[PromptLengths], longest: int) -> AuditRounds:
    """Compares trained lengths of `others` with those of first launches in audit rounds (`audited`).

    `longest` is the limit on a response's tokens: an audit round, too, may have cut a response if an engine was lost.
    """
    trained = [prompt.trained for prompt in others if prompt.trained]
    ks = ratio = None
    if min(len(audited), len(trained)) >= MIN_PROMPTS:
        domains: dict[str, list[PromptLengths]] = {}
        for prompt in audited:
            domains.setdefault(prompt.domain, []).append(prompt)
        launched = Distribution.of_launches(together([complete(members, longest) for members in domains.values()]))
        data = Distribution.of_samples(trained)
        ks, ratio = ks_distance(data, launched), mean_ratio(data, launched)
    return AuditRounds(len(audited), len(trained), ks, ratio)


@dataclass(frozen=True, slots=True)
class Distribution:
    """Atoms [n] in ascending order of `lengths`, with the numbers of their `prompts`, from 0, and their `masses`."""

    prompts: npt.NDArray[np.intp]
    lengths: Floats
    masses: Floats

    @classmethod
    def of_samples(cls, groups: Sequence[Sequence[int]]) -> Distribution:
        """Makes the distribution of the lengths in `groups`, one group per prompt; every sample has the same mass."""
        numbers = np.repeat(np.arange(len(groups)), [len(group) for group in groups])
        lengths = np.array([length for group in groups for length in group], dtype=np.float64)
        return cls._sorted(numbers, lengths, np.ones(len(lengths)))

    @classmethod
    def of_launches(cls, launched: FirstLaunches) -> Distribution:
        """Makes the distribution of first launches; every prompt has the same mass. Modelled ends are at their likely places."""
        return cls._sorted(launched.prompts, launched.likely, launched.masses)

    @classmethod
    def _sorted(cls, prompts: npt.NDArray[np.intp], lengths: Floats, masses: Floats) -> Distribution:
        order = np.argsort(lengths, kind="stable")
        return cls(prompts[order], lengths[order], masses[order])

    @property
    def count(self) -> int:
        """The number of prompts."""
        return int(self.prompts.max()) + 1

    def draws(self, seed: int) -> Floats:
        """Draws how often each prompt is in each resample [1 + DRAWS, count]: first the data, then draws by seed and count alone."""
        count = self.count
        random = np.random.default_rng([seed, count])
        return np.concatenate([np.ones((1, count)), random.multinomial(count, np.full(count, 1 / count), DRAWS)])

    def functions(self, grid: Floats, draws: Floats) -> Floats:
        """Computes the distribution function [d, g] at the lengths of `grid` [g], for each of `draws` [d, count]."""
        mass = np.cumsum(self.masses * draws[:, self.prompts], axis=1)
        at = np.searchsorted(self.lengths, grid, side="right")
        below: Floats = np.concatenate([np.zeros((len(draws), 1)), mass], axis=1)[:, at]
        return below / mass[:, -1:]

    def log_mean(self, draws: Floats) -> tuple[Floats, Floats]:
        """Computes the logarithm of the mean length and its standard error, by linearisation, for each of `draws`."""
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


def ks_distance(first: Distribution, second: Distribution) -> Estimate:
    """Estimates the largest difference of the two distribution functions, as in `paired.ks_distance`.

    The bootstrap's estimate of how much chance adds is subtracted from the value. The interval comes from a band of constant width
    around the whole difference function.
    """
    grid = np.unique(np.concatenate([first.lengths, second.lengths]))
    draws = first.draws(1), second.draws(2)

    def difference(rows: slice) -> Floats:
        return first.functions(grid, draws[0][rows]) - second.functions(grid, draws[1][rows])

    data = difference(slice(0, 1))
    chunks = (difference(slice(start, start + CHUNK)) for start in range(1, DRAWS + 1, CHUNK))
    distances, deviations = np.concatenate([[np.abs(each).max(1), np.abs(each - data).max(1)] for each in chunks], 1)
    band = np.quantile(deviations, CONFIDENCE)
    distance = float(np.abs(data).max())
    low, high = max(0.0, distance - band), min(1.0, distance + band)
    return Estimate(float(np.clip(2 * distance - distances.mean(), low, high)), float(low), float(high))


def mean_ratio(first: Distribution, second: Distribution) -> Estimate:
    """Estimates the mean of `first` divided by the mean of `second`.

    The interval is the symmetric bootstrap-t of the logarithm, as in `paired.mean_ratio`.
    """
    (top, top_error), (bottom, bottom_error) = first.log_mean(first.draws(1)), second.log_mean(second.draws(2))
    value, error = top - bottom, np.hypot(top_error, bottom_error)
    spread = np.maximum(error[1:], error[0] / 2)
    deviations = np.divide(np.abs(value[1:] - value[0]), spread, out=np.zeros(DRAWS), where=spread > 0)
    reach = np.quantile(deviations, CONFIDENCE) * error[0]
    return Estimate(*(float(np.exp(end)) for end in (value[0], value[0] - reach, value[0] + reach)))
