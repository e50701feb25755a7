"""The distribution of partly censored lengths: the product-limit estimate. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

# A tail is represented by this many parts of equal mass, each at its mean: enough for a distribution function, exact for a mean.
TAIL_PARTS = 16
# Masses below this are rounding errors.
_NOTHING = 1e-9


@dataclass(frozen=True, slots=True)
class Survival:
    """A distribution on the finished lengths `values` [n], ascending, with `masses` [n].

    The mass `rest` is beyond `last`, the longest length seen. `values` and `last` are in tokens, or in multiples of some level.
    """

    values: Floats
    masses: Floats
    rest: float
    last: float

    def beyond(self, cuts: Floats) -> tuple[Floats, Floats]:
        """Returns the distribution conditional on being longer than each of `cuts` [c, 1], as places and masses [c, TAIL_PARTS + 1].

        All columns but the last are parts of equal mass, each at its mean; the last is the mass beyond `last`, put at `last`. A place
        below its cut is moved there.
        """
        mass = np.concatenate([[0.0], np.cumsum(self.masses)])
        moment = np.concatenate([[0.0], np.cumsum(self.masses * self.values)])
        below = mass[np.searchsorted(self.values, cuts, side="right")]
        observed = np.maximum(mass[-1] - below, _NOTHING)
        unseen = np.where(observed > _NOTHING, self.rest / (observed + self.rest), 1.0)
        edges = below + observed * np.linspace(0, 1, TAIL_PARTS + 1)
        places = np.diff(np.interp(edges, mass, moment)) / (observed / TAIL_PARTS)
        places = np.concatenate([places, np.full(cuts.shape, self.last)], axis=1)
        masses = np.concatenate([np.repeat((1 - unseen) / TAIL_PARTS, TAIL_PARTS, axis=1), unseen], axis=1)
        return np.maximum(places, cuts), masses


def product_limit(lengths: Floats, finished: Bools) -> Survival:
    """Estimates the distribution of `lengths` [n > 0], of which those not `finished` [n] are only lower bounds.

    Kaplan & Meier 1958, Nonparametric estimation from incomplete observations. A censored length counts as longer
    than an equal finished one.
    """
    order = np.lexsort((~finished, lengths))
    lengths, ended = lengths[order], finished[order]
    surviving = np.cumprod(1 - ended / np.arange(len(lengths), 0, -1))
    masses = -np.diff(surviving, prepend=1.0)
    return Survival(lengths[ended], masses[ended], float(surviving[-1]), float(lengths[-1]))


def median(finished: Sequence[int], cut: Sequence[int]) -> float:
    """Estimates by the product limit the length by which half of the responses have ended; NaN if too many were cut, or there are none."""
    surviving, at_risk = 1.0, len(finished) + len(cut)
    for length, censored in sorted([*((length, False) for length in finished), *((length, True) for length in cut)]):
        if not censored:
            surviving *= 1 - 1 / at_risk
        # Products of such fractions may miss a half by rounding.
        if surviving < 0.5 + _NOTHING:
            return length
        at_risk -= 1
    return float("nan")


def exponential(masses: Floats) -> Floats:
    """Splits the exponential distribution with mean 1 into ascending parts of `masses` [c, parts], and returns their means.

    The masses of a row sum to 1. The mean of a part without mass says nothing.
    """
    above = np.clip(1 - np.cumsum(np.pad(masses, ((0, 0), (1, 0))), axis=1), 0.0, 1.0)
    moment = above * np.log(np.maximum(above, _NOTHING)) - above
    means: Floats = np.diff(moment) / np.maximum(masses, _NOTHING)
    return means
