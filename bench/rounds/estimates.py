"""Values with 95 % intervals: of many prompts by resampling them, of few seeds by Student's t."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

DRAWS = 2000
# Draws of Student's t: its quantile to two digits with one degree of freedom, to three with several.
_T_DRAWS = 1_000_000


@dataclass(frozen=True, slots=True)
class Estimate:
    """A value with the ends of its interval; `count` is that of the values or pairs that it was estimated from."""

    value: float
    low: float
    high: float
    count: int

    def text(self, form: str = ".3f", shown: Callable[[float], float] = float) -> str:
        """Formats the value and the ends of the interval, each as `shown` makes it."""
        value, low, high = (format(shown(end), form) for end in (self.value, self.low, self.high))
        return f"{value} ({low} to {high})"

    def needed(self, loss: float) -> int | None:
        """Estimates the count with which the interval would exclude `loss`, if the value stayed; None if it loses that much or more."""
        margin = self.value + loss
        return None if margin <= 0 else max(1, round(self.count * ((self.value - self.low) / margin) ** 2))


def ratio(pairs: Sequence[tuple[float, float]]) -> Estimate:
    """Estimates the sum of the first values divided by that of the second ones; pairs are resampled."""
    first, second = np.array(pairs, dtype=np.float64).T
    drawn = _draws(len(pairs))
    ratios = first[drawn].sum(1) / second[drawn].sum(1)
    return Estimate(float(first.sum() / second.sum()), *_ends(ratios), len(pairs))


def mean(values: Sequence[float]) -> Estimate:
    """Estimates the mean of at least two values that are about normal."""
    array = np.array(values, dtype=np.float64)
    half = _student(len(array) - 1) * array.std(ddof=1) / np.sqrt(len(array))
    return Estimate(float(array.mean()), float(array.mean() - half), float(array.mean() + half), len(array))


@cache
def _student(freedom: int) -> float:
    """Estimates the 97.5 % quantile of Student's t with `freedom` degrees of freedom."""
    return float(np.quantile(np.random.default_rng(0).standard_t(freedom, _T_DRAWS), 0.975))


def _draws(count: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, count, (DRAWS, count))


def _ends(means: np.ndarray) -> tuple[float, float]:
    low, high = np.quantile(means, [0.025, 0.975])
    return float(low), float(high)
