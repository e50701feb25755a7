"""The mean length of what was trained by that of what was first launched. Pure."""

from __future__ import annotations

import numpy as np

from longboat_runtime.rounds.audit.paired_laws import CONFIDENCE, DRAWS, Estimate, PairedLaws
from longboat_runtime.rounds.audit.survival import Floats


def mean_ratio(laws: PairedLaws, draws: Floats) -> Estimate:
    """The ratio of means. `draws` are those of `laws`; each must have trained samples.

    The interval is the symmetric bootstrap-t of the logarithm (Hall 1988, On symmetric bootstrap confidence intervals), which
    holds for long tails where percentiles are too narrow. Its ends have what is modelled at its farthest and nearest places.
    """
    launched, least = laws.launched, _chance_error(laws)
    value, error = _log_ratio(laws, launched.likely, draws)
    low, low_error = _log_ratio(laws, launched.far, draws[:1])
    high, high_error = _log_ratio(laws, launched.near, draws[:1])
    # The few prompts that differ are missing in some draws, which then have no spread of their own.
    spread = np.maximum(error[1:], max(error[0], least) / 2)
    deviations = np.divide(np.abs(value[1:] - value[0]), spread, out=np.zeros(DRAWS), where=spread > 0)
    reach = np.quantile(deviations, CONFIDENCE)
    ends = (value[0], low[0] - reach * max(low_error[0], least), high[0] + reach * max(high_error[0], least))
    return Estimate(*(float(np.exp(end)) for end in ends))


def _chance_error(laws: PairedLaws) -> float:
    """Standard error of the log ratio if prompts were trained or not regardless of their length.

    The least there can be: the few that weren't trained may happen to be alike, and then show too small an error.
    """
    trained, means = laws.trained, laws.launched_means(laws.launched.likely)
    return float(trained.std() / trained.mean() * means.std() / means.mean() / np.sqrt(laws.count))


def _log_ratio(laws: PairedLaws, places: Floats, draws: Floats) -> tuple[Floats, Floats]:
    """Log of the ratio and its standard error, by linearisation, in each of `draws`; first launches are at `places`."""
    tokens = np.bincount(laws.prompts, laws.lengths, laws.count)
    columns = np.stack([tokens, laws.trained, laws.launched_means(places)], axis=1)
    center = columns.mean(0)
    columns = columns / center
    products = np.einsum("pi,pj->pij", columns, columns).reshape(laws.count, -1)
    means, moments = draws @ columns / laws.count, (draws @ products / laws.count).reshape(-1, 3, 3)
    signs = np.array([1, -1, -1])
    slopes = signs / means
    # A prompt's influence is slopes . columns + 1, of mean zero.
    variance = np.einsum("di,dij,dj->d", slopes, moments, slopes) - 1
    return np.log(center * means) @ signs, np.sqrt(np.maximum(variance, 0) / laws.count)
