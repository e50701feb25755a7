"""Trained lengths paired with those of first launches, prompt by prompt: their distance and the ratio of their means. Pure.

Prompts are resampled, not samples, since responses to one prompt are alike. A prompt is drawn with both sides, which are the same
responses unless the policy changed something, so only its changes contribute to the spread (Efron & Tibshirani 1993, An
introduction to the bootstrap, chapter 8).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from longboat_runtime.rounds.audit.first_launches import FirstLaunches
from longboat_runtime.rounds.audit.lengths import PromptLengths
from longboat_runtime.rounds.audit.survival import Floats

# How many draws have their distribution functions in memory at a time.
CHUNK = 25


CONFIDENCE = 0.95
DRAWS = 400


@dataclass(frozen=True, slots=True)
class Estimate:
    """A value with its 95 % interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class PairedDistributions:
    """Both distributions of `count` prompts: first launches, and trained samples as their `prompts` [n] and `lengths` [n]."""

    count: int
    launched: FirstLaunches
    prompts: npt.NDArray[np.intp]
    lengths: Floats

    @classmethod
    def from_prompts(cls, prompts: Sequence[PromptLengths], launched: FirstLaunches) -> PairedDistributions:
        numbers = np.repeat(np.arange(len(prompts)), [len(prompt.trained) for prompt in prompts])
        lengths = np.array([length for prompt in prompts for length in prompt.trained], dtype=np.float64)
        return cls(len(prompts), launched, numbers, lengths)

    @property
    def trained(self) -> Floats:
        """The number of trained samples of each prompt [count]."""
        return np.bincount(self.prompts, minlength=self.count).astype(np.float64)

    def launched_means(self, places: Floats) -> Floats:
        """Computes the mean length of each prompt's first launch [count], with its atoms at `places` [n]."""
        return np.bincount(self.launched.prompts, self.launched.masses * places, self.count).astype(np.float64)

    def draws(self) -> Floats:
        """Draws how often each prompt is in each resample [1 + DRAWS, count]: first the data, then draws that depend only on the count."""
        drawn = np.random.default_rng(self.count).multinomial(self.count, np.full(self.count, 1 / self.count), DRAWS)
        return np.concatenate([np.ones((1, self.count)), drawn])


def ks_distance(pair: PairedDistributions, draws: Floats) -> Estimate:
    """Estimates the largest difference of the two distribution functions.

    `draws` are `pair.draws()`; each must have trained samples.

    Samples differ even without a bias: the bootstrap's estimate of what that adds is subtracted from the value. The interval comes
    from a band of constant width around the whole difference function (the bootstrap of Kolmogorov's band; Bickel & Freedman 1981,
    Some asymptotic theory for the bootstrap). So it is valid for any distance, including 0, which percentiles never reach. Its low
    end is above 0 only if equality is rejected, and it is wider than a large distance needs.
    """
    launched = pair.launched
    near, likely, far = (_difference(pair, places) for places in (launched.near, launched.likely, launched.far))
    distances, deviations = _resampled(pair, draws)
    band = np.quantile(deviations, CONFIDENCE)
    # Mass at greater lengths lowers the launched function: the difference lies between `near` and `far`.
    low = max(0.0, float(np.maximum(near, -far).max() - band))
    high = min(1.0, float(np.maximum(-near, far).max() + band))
    value = 2 * np.abs(likely).max() - distances.mean()
    return Estimate(float(np.clip(value, low, high)), low, high)


def _difference(pair: PairedDistributions, places: Floats) -> Floats:
    """Computes the trained minus the launched distribution function at all lengths that occur, with first launches at `places`."""
    launched = pair.launched
    grid = np.unique(np.concatenate([launched.near, launched.likely, launched.far, pair.lengths]))
    order = np.argsort(places, kind="stable")
    mass = np.concatenate([[0.0], np.cumsum(launched.masses[order])]) / pair.count
    share = np.searchsorted(np.sort(pair.lengths), grid, side="right") / len(pair.lengths)
    return share - mass[np.searchsorted(places[order], grid, side="right")]


def _resampled(pair: PairedDistributions, draws: Floats) -> tuple[Floats, Floats]:
    """Computes for each draw but the first its distance, and the largest deviation of its difference function from the data's [DRAWS]."""
    launched = pair.launched
    lengths = np.concatenate([launched.likely, pair.lengths])
    order = np.argsort(lengths, kind="stable")
    prompts = np.concatenate([launched.prompts, pair.prompts])[order]
    fall = np.concatenate([launched.masses / pair.count, np.zeros(len(pair.lengths))])[order]
    rise = np.concatenate([np.zeros(len(launched.likely)), np.ones(len(pair.lengths))])[order]
    ends = np.flatnonzero(np.diff(lengths[order], append=np.inf))
    samples = (draws @ pair.trained)[:, None]

    def functions(rows: slice) -> Floats:
        return np.cumsum((rise / samples[rows] - fall) * draws[rows][:, prompts], axis=1)[:, ends]

    data = functions(slice(0, 1))
    chunks = (functions(slice(start, start + CHUNK)) for start in range(1, DRAWS + 1, CHUNK))
    distances, deviations = np.concatenate([[np.abs(each).max(1), np.abs(each - data).max(1)] for each in chunks], 1)
    return distances, deviations


def mean_ratio(pair: PairedDistributions, draws: Floats) -> Estimate:
    """Estimates the ratio of means, trained by launched. `draws` are `pair.draws()`; each must have trained samples.

    The interval is the symmetric bootstrap-t of the logarithm (Hall 1988, On symmetric bootstrap confidence intervals), which
    is valid for long tails, for which percentiles are too narrow. Its ends put modelled mass at its farthest and nearest places.
    """
    launched, least = pair.launched, _chance_error(pair)
    value, error = _log_ratio(pair, launched.likely, draws)
    low, low_error = _log_ratio(pair, launched.far, draws[:1])
    high, high_error = _log_ratio(pair, launched.near, draws[:1])
    # The few prompts that differ are missing from some draws, which then have no spread of their own.
    spread = np.maximum(error[1:], max(error[0], least) / 2)
    deviations = np.divide(np.abs(value[1:] - value[0]), spread, out=np.zeros(DRAWS), where=spread > 0)
    reach = np.quantile(deviations, CONFIDENCE)
    ends = (value[0], low[0] - reach * max(low_error[0], least), high[0] + reach * max(high_error[0], least))
    return Estimate(*(float(np.exp(end)) for end in ends))


def _chance_error(pair: PairedDistributions) -> float:
    """Computes the standard error of the log ratio if whether a prompt is trained didn't depend on its length.

    It serves as a lower bound: the few prompts that weren't trained may happen to be alike, and then show too small an error.
    """
    trained, means = pair.trained, pair.launched_means(pair.launched.likely)
    return float(trained.std() / trained.mean() * means.std() / means.mean() / np.sqrt(pair.count))


def _log_ratio(pair: PairedDistributions, places: Floats, draws: Floats) -> tuple[Floats, Floats]:
    """Computes the logarithm of the ratio and its standard error, by linearisation, for each of `draws`; first launches are at `places`."""
    tokens = np.bincount(pair.prompts, pair.lengths, pair.count)
    columns = np.stack([tokens, pair.trained, pair.launched_means(places)], axis=1)
    center = columns.mean(0)
    columns = columns / center
    products = np.einsum("pi,pj->pij", columns, columns).reshape(pair.count, -1)
    means, moments = draws @ columns / pair.count, (draws @ products / pair.count).reshape(-1, 3, 3)
    signs = np.array([1, -1, -1])
    slopes = signs / means
    # A prompt's influence is slopes . columns + 1, with mean zero.
    variance = np.einsum("di,dij,dj->d", slopes, moments, slopes) - 1
    return np.log(center * means) @ signs, np.sqrt(np.maximum(variance, 0) / pair.count)
