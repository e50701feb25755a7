"""The outcome of one reward function on one sample, as it travels between graders and driver. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any


class OutcomeKind(StrEnum):
    """`samples.GradeKind`, and NOT_APPLICABLE for a function that has nothing to say about the sample."""

    SCORED = "scored"
    WRONG_FORMAT = "wrong_format"
    TIMEOUT = "timeout"
    GRADER_ERROR = "grader_error"
    NOT_APPLICABLE = "not_applicable"


@dataclass(frozen=True, slots=True)
class Outcome:
    """`score` counts for SCORED and WRONG_FORMAT only. `seconds` is the wall time of the grade's process."""

    kind: OutcomeKind
    score: float = 0.0
    seconds: float = 0.0
    message: str = ""

    def to_json(self) -> dict[str, Any]:
        """A JSON object."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Outcome:
        """The inverse of `to_json`. Raises KeyError, TypeError or ValueError if it isn't one."""
        return cls(OutcomeKind(value["kind"]), float(value["score"]), float(value["seconds"]), str(value["message"]))
