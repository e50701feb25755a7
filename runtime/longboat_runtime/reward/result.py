"""Defines what a reward function is given, what it returns, and the outcome. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import StrEnum

TYPE_CHECKING = False  # `typing` itself would be in the memory of every grader
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from longboat_crds.reward_kinds import RewardIsolation


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


class OutcomeKind(StrEnum):
    """`samples.GradeKind`, NOT_APPLICABLE for a function that has nothing to say about the sample, and LOST.

    LOST says that the graders went away, or that a program crashed while their container was short of memory.
    """

    SCORED = "scored"
    WRONG_FORMAT = "wrong_format"
    TIMEOUT = "timeout"
    GRADER_ERROR = "grader_error"
    NOT_APPLICABLE = "not_applicable"
    LOST = "lost"


@dataclass(frozen=True, slots=True)
class FunctionOutcome:
    """The outcome of one function on one sample, as it travels between graders and driver.

    `score` counts for SCORED and WRONG_FORMAT only. `seconds` is the grade's wall time, `cpu_seconds` what its processes used
    (programs that a function starts may be missing, unless its time is learned from); both are taken by who supervises it. `begun` is of
    a LOST one: whether it was being graded.

    `own_seconds` is there if its time is learned from and was measured: the wall time without what it waited for a CPU, or `cpu_seconds`
    if that is more. `limited` says that a learned limit ended it. Where there are test cases, `own_seconds` are of the one that took
    longest, and `limited` says that one failed because of its limit: with partial credit such a grade may be SCORED.
    """

    kind: OutcomeKind
    score: float = 0.0
    seconds: float = 0.0
    message: str = ""
    cpu_seconds: float = 0.0
    own_seconds: float | None = None
    limited: bool = False
    begun: bool = False

    def to_json(self) -> dict[str, Any]:
        """Returns a JSON object that `from_json` reads; `begun` isn't in it."""
        value = {
            "kind": self.kind,
            "score": self.score,
            "seconds": self.seconds,
            "message": self.message,
            "cpu_seconds": self.cpu_seconds,
        }
        if self.own_seconds is not None:
            value |= {"own_seconds": self.own_seconds, "limited": self.limited}
        return value

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> FunctionOutcome:
        """Reads what `to_json` returned; one that graders say is LOST had begun.

        Raises KeyError, TypeError or ValueError if it isn't one.
        """
        kind, own = OutcomeKind(value["kind"]), value.get("own_seconds")
        return cls(
            kind,
            score=float(value["score"]),
            seconds=float(value["seconds"]),
            message=str(value["message"]),
            cpu_seconds=float(value["cpu_seconds"]),
            own_seconds=None if own is None else float(own),
            limited=own is not None and bool(value["limited"]),
            begun=kind is OutcomeKind.LOST,
        )


@dataclass(frozen=True, slots=True)
class IsolationInForce:
    """Says how a reward's grades are kept apart now. Where Auto has fallen back to PerGrade, `reason` says why, in one line."""

    isolation: RewardIsolation
    reason: str = ""


@dataclass(frozen=True, slots=True)
class GradersCapacity:
    """Says how many grades a pod's graders run at once now, and the CPU seconds that their container has used.

    The latter is None if it has no CPU quota: then others may use the same cgroup.
    """

    at_once: int
    cpu_seconds: float | None = None
