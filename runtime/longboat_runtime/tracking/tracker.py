"""Defines a tracker as the process that feeds it sees it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol, Self

from longboat_runtime.metrics.record import Record
from longboat_runtime.tracking.feed import Entry

# The metric that is the step's number.
STEP = "training/global_step"


class TrackingProblem(Exception):
    """Says why a tracker can't log now: `field` is the spec field to look at, below `spec.tracking`; `message` is for people."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(field, message)
        self.field, self.message = field, message

    def to_json(self) -> dict[str, str]:
        """Returns a JSON object."""
        return {"field": self.field, "message": self.message}


@dataclass(frozen=True, slots=True)
class TrackedJob:
    """Tells a tracker's process about its job.

    `run` identifies the job's run in every tracker, `spec` is the job's as JSON values. `secrets` is the directory that has the
    keys of the trackers' Secrets as files, None for a job without Kubernetes. `scratch` is a directory for the process alone.
    """

    run: str
    name: str
    root: str
    incarnation: int
    spec: Mapping[str, Any]
    secrets: str | None
    scratch: str

    def to_json(self) -> dict[str, Any]:
        """Returns a JSON object."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """Reads what `to_json` returned."""
        return cls(**value)

    def secret(self, key: str) -> str | None:
        """Returns the value of a key of a tracker's Secret, else of the environment variable of that name; None if neither has any.

        The clients read that variable too.
        """
        file = Path(self.secrets or "/nonexistent") / key
        text = file.read_text().strip() if file.is_file() else ""
        return text or os.environ.get(key) or None


class Tracker(Protocol):
    """A run that has been opened or resumed. Calls may block or raise: only the process that makes them is delayed or ends.

    `place` says where people find the run; `position` is the last step that the run has (-1: none), as its server or files say;
    `lacking` is why something other than records can't be logged.
    """

    place: str
    position: int
    lacking: TrackingProblem | None

    def log(self, entry: Entry) -> None:
        """Logs a step beyond `position`. Raises TrackingProblem if that can't be done."""

    def caught_up(self) -> None:
        """Notes that everything that earlier starts of the job had recorded has been logged."""

    def finish(self, ending: str | None) -> None:
        """Sends what is left. `ending` is `done` or `failed`; None if the job resumes later."""


def finite(record: Record) -> dict[str, float]:
    """Returns the metrics of a record that are finite numbers, and its step."""
    # Infinities and NaN are missing points in every tracker's charts; a comparison with NaN is false.
    values = {name: value for name, value in record.metrics.items() if abs(value) < float("inf")}
    return {**values, STEP: float(record.step)}
