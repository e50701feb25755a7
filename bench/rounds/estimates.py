"""Values with 95 % intervals, by resampling prompts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

DRAWS = 2000


@dataclass(frozen=True, slots=True)
class Estimate:
    """`count` is of what was resampled."""

    value: float
    low: float
    high: float
    count: int

    def text(self, form: str = ".3f") -> str:
        return f"{self.value:{form}} ({self.low:{form}} to {self.high:{form}})"

    def needed(self, loss: float) -> int | None:
        """Prompts with which the interval would exclude a loss of so much, if the value stayed; None if it loses that much."""
        margin = self.value + loss
        return None if margin <= 0 else max(1, round(self.count * ((self.value - self.low) / margin) ** 2))


def ratio(pairs: Sequence[tuple[float, float]]) -> Estimate:
    """Sum of the first by sum of the second; pairs are resampled."""
    first, second = np.array(pairs, dtype=np.float64).T
    drawn = _draws(len(pairs))
    ratios = first[drawn].sum(1) / second[drawn].sum(1)
    return Estimate(float(first.sum() / second.sum()), *_ends(ratios), len(pairs))


def mean(values: Sequence[float]) -> Estimate:
    """Mean of values, which are resampled."""
    known = np.array(values, dtype=np.float64)
    return Estimate(float(known.mean()), *_ends(known[_draws(len(known))].mean(1)), len(known))


def _draws(count: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, count, (DRAWS, count))


def _ends(found: np.ndarray) -> tuple[float, float]:
    low, high = np.quantile(found, [0.025, 0.975])
    return float(low), float(high)
