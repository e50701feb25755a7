"""Small summaries of numbers. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least `share` (0..1) of the values don't exceed (nearest rank). Raises ValueError if empty."""
    if not values:
        raise ValueError("no values")
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


def spread(name: str, values: Sequence[float]) -> dict[str, float]:
    """`name/mean`, `name/max` and `name/min`; empty without values."""
    if not values:
        return {}
    return {f"{name}/mean": math.fsum(values) / len(values), f"{name}/max": max(values), f"{name}/min": min(values)}
