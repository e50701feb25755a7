"""The driver's part of `status`, and when it is worth a request. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from pydantic import ValidationError

from longboat_crds.base import ApiModel
from longboat_crds.status import CheckpointStatus, Demand, Problem, Training

Part = TypeVar("Part", bound=ApiModel)

# Changes of these are written at once; anything else (the stage) at most so often, in seconds.
QUIET_INTERVAL = 60.0


@dataclass(frozen=True, slots=True)
class DriverStatus:
    """All fields that the driver owns; what is None is absent."""

    training: Training | None = None
    demand: Demand | None = None
    checkpoint: CheckpointStatus | None = None
    problem: Problem | None = None

    def to_json(self) -> dict[str, Any]:
        """As in the manifest. Server-side apply drops what is left out."""
        parts = {
            "training": self.training,
            "demand": self.demand,
            "checkpoint": self.checkpoint,
            "problem": self.problem,
        }
        return {name: part.to_json() for name, part in parts.items() if part is not None}

    @classmethod
    def from_json(cls, status: Mapping[str, Any]) -> DriverStatus:
        """Progress and checkpoint in a job's status; a part that another version wrote and this one can't read is absent."""
        return cls(
            training=_read(Training, status.get("training")),
            checkpoint=_read(CheckpointStatus, status.get("checkpoint")),
        )


def _read(model: type[Part], value: Any) -> Part | None:
    try:
        return model.model_validate(value) if value is not None else None
    except ValidationError:
        return None


def due(stored: DriverStatus | None, wanted: DriverStatus, seconds: float) -> float | None:
    """In how many seconds `wanted` should be written, `seconds` after `stored` was; None if nothing changed.

    At once: another state, step, incarnation, demand, checkpoint or problem. Once a minute at most: anything else.
    """
    if stored is None:
        return 0.0
    if _without_time(stored) == _without_time(wanted):
        return None
    return 0.0 if _urgent(stored) != _urgent(wanted) else max(0.0, QUIET_INTERVAL - seconds)


def _without_time(status: DriverStatus) -> DriverStatus:
    training = status.training and status.training.model_copy(update={"updated": None})
    return replace(status, training=training)


def _urgent(status: DriverStatus) -> tuple[object, ...]:
    training = status.training
    progress = training and (training.incarnation, training.state, training.step, training.accuracy)
    return progress, status.demand, status.checkpoint, status.problem
