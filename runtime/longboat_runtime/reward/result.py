"""What a reward function returns. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class RewardResult:
    """A score, and whether the response had the form that the task asks for.

    A response of the wrong form (no answer to be found in it) still has a score, mostly 0, but is counted separately from a
    wrong answer.
    """

    score: float
    format_ok: bool = True


def as_result(value: Any) -> RewardResult | None:
    """What a function returned, as a RewardResult; None stays None (the function doesn't apply to this sample).

    Numbers (also numpy's and torch's scalars) are scores. Raises TypeError for anything else, ValueError unless finite.
    """
    if value is None:
        return None
    result = value if isinstance(value, RewardResult) else RewardResult(_number(value))
    if not math.isfinite(result.score):
        raise ValueError(f"the reward function returned {result.score}; a score is a finite number")
    return result


def _number(value: Any) -> float:
    if isinstance(value, (str, bytes)) or not hasattr(value, "__float__"):
        raise TypeError(
            f"the reward function returned a {type(value).__name__}; return a number, a RewardResult, or None if it doesn't apply"
        )
    return float(value)
