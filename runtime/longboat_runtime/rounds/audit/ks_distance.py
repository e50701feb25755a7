"""The Kolmogorov-Smirnov distance of what was trained from what was first launched. Pure."""

from __future__ import annotations

import numpy as np

from longboat_runtime.rounds.audit.paired_laws import CONFIDENCE, DRAWS, Estimate, PairedLaws
from longboat_runtime.rounds.audit.survival import Floats

# Draws whose distribution functions are in memory at a time.
_CHUNK = 25


def ks_distance(laws: PairedLaws, draws: Floats) -> Estimate:
    """The largest difference of the two distribution functions. `draws` are those of `laws`; each must have trained samples.

    Samples have a distance without any bias: the value has the bootstrap's estimate of that taken off. The interval comes from a
    band of constant width about the whole difference function (the bootstrap of Kolmogorov's band; Bickel & Freedman 1981, Some
    asymptotic theory for the bootstrap): so it is valid for any distance, 0 included, where percentiles never reach 0; its low end
    is above 0 only where equal laws are rejected; and it is wider than a large distance needs.
    """
    launched = laws.launched
    near, likely, far = (_difference(laws, places) for places in (launched.near, launched.likely, launched.far))
    distances, deviations = _resampled(laws, draws)
    band = np.quantile(deviations, CONFIDENCE)
    # Mass that is farther away lowers the launched function: the difference lies between `near` and `far`.
    low = max(0.0, float(np.maximum(near, -far).max() - band))
    high = min(1.0, float(np.maximum(-near, far).max() + band))
    value = 2 * np.abs(likely).max() - distances.mean()
    return Estimate(float(np.clip(value, low, high)), low, high)


def _difference(laws: PairedLaws, places: Floats) -> Floats:
    """Trained minus launched distribution function at all lengths that occur; first launches are at `places`."""
    launched = laws.launched
    grid = np.unique(np.concatenate([launched.near, launched.likely, launched.far, laws.lengths]))
    order = np.argsort(places, kind="stable")
    mass = np.concatenate([[0.0], np.cumsum(launched.masses[order])]) / laws.count
    share = np.searchsorted(np.sort(laws.lengths), grid, side="right") / len(laws.lengths)
    return share - mass[np.searchsorted(places[order], grid, side="right")]


def _resampled(laws: PairedLaws, draws: Floats) -> tuple[Floats, Floats]:
    """For each draw but the first: its distance, and its difference function's largest deviation from the data's [DRAWS]."""
    launched = laws.launched
    lengths = np.concatenate([launched.likely, laws.lengths])
    order = np.argsort(lengths, kind="stable")
    prompts = np.concatenate([launched.prompts, laws.prompts])[order]
    fall = np.concatenate([launched.masses / laws.count, np.zeros(len(laws.lengths))])[order]
    rise = np.concatenate([np.zeros(len(launched.likely)), np.ones(len(laws.lengths))])[order]
    ends = np.flatnonzero(np.diff(lengths[order], append=np.inf))
    samples = (draws @ laws.trained)[:, None]

    def functions(rows: slice) -> Floats:
        return np.cumsum((rise / samples[rows] - fall) * draws[rows][:, prompts], axis=1)[:, ends]

    data = functions(slice(0, 1))
    found = [functions(slice(start, start + _CHUNK)) for start in range(1, DRAWS + 1, _CHUNK)]
    distances = np.concatenate([np.abs(each).max(1) for each in found])
    return distances, np.concatenate([np.abs(each - data).max(1) for each in found])
