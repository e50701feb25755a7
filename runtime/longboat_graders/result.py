"""Defines what a reward function is given, and what it returns. Pure."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field

TYPE_CHECKING = False  # `typing` itself would be in the memory of every grader
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any


@dataclass(frozen=True, slots=True)
class RewardSample:
    """One response and the row it answers.

    `text` is the response, without special tokens unless the reward sets `specialTokens`. `prompt` is the prompt as the model saw it; if it
    ends in the start of the response, that is `prefill`. `messages` is the chat of a conversational row, else None. `columns`
    are all columns of the row, JSON values. `finish_reason` says why the response ended: `stop`, `length` (cut off by maxTokens) or
    `repetition` (ended for repeating itself). `tokens` is the length of the response, `token_ids` is None unless the reward
    takes them. `training` is the training's progress.

    `turns` is there if an environment played the sample; `text` is the last reply then, and `tokens` those of all turns. A turn is an object
    with the messages `new` before it, the model's `message`, its `text` with special tokens, its `tokens`, `finish_reason` and `seconds`,
    the number of the `segment` that trains it, and the number of the turn that it `continues`, null if it began a conversation.
    """

    text: str
    prompt: str
    ground_truth: Any = None
    domain: str = ""
    columns: Mapping[str, Any] = field(default_factory=dict)
    messages: Sequence[Mapping[str, Any]] | None = None
    finish_reason: str = "stop"
    tokens: int = 0
    prefill: str = ""
    token_ids: Sequence[int] | None = None
    training: Mapping[str, float] = field(default_factory=dict)
    turns: Sequence[Mapping[str, Any]] | None = None

    @property
    def conversation(self) -> tuple[list[Mapping[str, Any]], list[Mapping[str, Any]]]:
        """The messages of the conversation of the last turn: those before the first reply, and the others, that reply included.

        Both are empty without turns.
        """
        chain: list[Mapping[str, Any]] = []
        number = len(self.turns) - 1 if self.turns else None
        while self.turns is not None and number is not None:
            chain.insert(0, self.turns[number])
            number = chain[0]["continues"]
        messages = [message for turn in chain for message in (*turn["new"], turn["message"])]
        before = len(chain[0]["new"]) if chain else 0
        return messages[:before], messages[before:]


# What differs between the responses to a row.
RESPONSE_FIELDS = ("text", "finish_reason", "tokens", "token_ids", "turns")


def _finite(value: Any) -> float | None:
    if isinstance(value, (str, bytes)) or not hasattr(value, "__float__"):
        return None
    try:
        number = float(value)
    except Exception:  # noqa: BLE001 - of any library's number: it is no metric
        return None
    return number if math.isfinite(number) else None


@dataclass(frozen=True, slots=True)
class RewardResult:
    """A score, and whether the response had the form that the task asks for.

    A response of the wrong form (no answer to be found in it) still has a score, mostly 0, but is counted separately from a
    wrong answer. The first MOST_METRICS of `metrics` whose names are plain become means over samples, `reward/extra/NAME/KEY/mean`; how
    many others there are is one more, `left_out`. People see the beginning of `message` in `longboat samples`.
    """

    score: float
    format_ok: bool = True
    metrics: Mapping[str, float] = field(default_factory=dict, repr=False)
    message: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class GroupResult:
    """The results of all responses to a prompt, in order, and metrics of all of them together."""

    results: Sequence[RewardResult | None]
    metrics: Mapping[str, float] = field(default_factory=dict)


MOST_METRICS = 32
LEFT_OUT = "left_out"
_METRIC_CHARACTERS = 64
_PLAIN = re.compile(r"[A-Za-z_][\w.@-]*")


def plain_metrics(values: Mapping[Any, Any]) -> dict[str, float]:
    """Returns the numbers among `values` as RewardResult has them; what isn't a finite number isn't counted as left out."""
    numbers = {name: number for name, value in values.items() if (number := _finite(value)) is not None}
    before = numbers.pop(LEFT_OUT, 0.0)
    plain = [
        name for name in numbers if isinstance(name, str) and len(name) <= _METRIC_CHARACTERS and _PLAIN.fullmatch(name)
    ][:MOST_METRICS]
    left_out = before + len(numbers) - len(plain)
    return {name: numbers[name] for name in plain} | ({LEFT_OUT: left_out} if left_out else {})


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
