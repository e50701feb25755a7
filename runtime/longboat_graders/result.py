"""Defines what a reward function is given, and what it returns. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

TYPE_CHECKING = False  # `typing` itself would be in the memory of every grader
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any


@dataclass(frozen=True, slots=True)
class RewardSample:
    """One response and the row it answers.

    `text` is the response without special tokens, `prompt` the prompt text as the model saw it. `messages` is the chat of a
    conversational row, else None. `columns` are all columns of the row, JSON values. `finish_reason` says why the response ended:
    `stop`, `length` (cut off by maxTokens) or `repetition` (ended for repeating itself). `tokens` is the length of the response.
    """

    text: str
    prompt: str
    ground_truth: Any = None
    domain: str = ""
    columns: Mapping[str, Any] = field(default_factory=dict)
    messages: Sequence[Mapping[str, Any]] | None = None
    finish_reason: str = "stop"
    tokens: int = 0


@dataclass(frozen=True, slots=True)
class RewardResult:
    """A score, and whether the response had the form that the task asks for.

    A response of the wrong form (no answer to be found in it) still has a score, mostly 0, but is counted separately from a
    wrong answer.
    """

    score: float
    format_ok: bool = True


def as_result(value: Any) -> RewardResult | None:
    """Turns what a function returned into a RewardResult; None stays None (the function doesn't apply to this sample).

    Numbers (also numpy's and torch's scalars) are scores. Raises ValueError for one that isn't finite, and an error, mostly TypeError, for
    anything else.
    """
    if value is None:
        return None
    result = (
        value if isinstance(value, RewardResult) else RewardResult(value if type(value) is float else _number(value))
    )
    if not math.isfinite(result.score):
        raise ValueError(f"the reward function returned {result.score}; a score is a finite number")
    return result


def _number(value: Any) -> float:
    if isinstance(value, (str, bytes)) or not hasattr(value, "__float__"):
        raise TypeError(
            f"the reward function returned a {type(value).__name__}; return a number, a RewardResult, or None if it doesn't apply"
        )
    return float(value)
