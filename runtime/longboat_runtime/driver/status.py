"""The driver's part of `status`, and when it is worth a request. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from pydantic import ValidationError

from longboat_crds.base import FieldsModel
from longboat_crds.status import DRIVER_FIELDS, CheckpointStatus, Demand, Problem, Training
from longboat_crds.tolerance import read_known

Part = TypeVar("Part", bound=FieldsModel)

# The least time, in seconds, between writes of changes that aren't urgent, such as the stage.
QUIET_INTERVAL = 60.0
# The least time, in seconds, between writes of changes of the demand: each makes the operator plan the job's capacity again.
DEMAND_INTERVAL = 2.0


@dataclass(frozen=True, slots=True)
class DriverStatus:
    """All fields that the driver owns; None means absent."""

    training: Training | None = None
    demand: Demand | None = None
    checkpoint: CheckpointStatus | None = None
    problem: Problem | None = None

    def to_json(self) -> dict[str, Any]:
        """Returns the status as the API has it. Server-side apply removes fields of the driver that are left out."""
        parts = {
            "training": self.training,
            "demand": self.demand,
            "checkpoint": self.checkpoint,
            "problem": self.problem,
        }
        return {name: part.to_json() for name, part in parts.items() if part is not None}

    def is_in(self, status: Mapping[str, Any]) -> bool:
        """Whether the driver's part of a job's status is this one."""
        return {name: status[name] for name in DRIVER_FIELDS & status.keys()} == self.to_json()

    @classmethod
    def from_json(cls, status: Mapping[str, Any]) -> DriverStatus:
        """Reads progress and checkpoint in a job's status, as far as this version knows and can read them."""
        return cls(
            training=_read(Training, status.get("training")),
            checkpoint=_read(CheckpointStatus, status.get("checkpoint")),
        )


def _read(model: type[Part], value: Any) -> Part | None:
    try:
        return read_known(model, value) if value is not None else None
    except ValidationError:
        return None


def due(stored: DriverStatus | None, wanted: DriverStatus, seconds: float, since_demand: float) -> float | None:
    """Returns the seconds until `wanted` should be written, `seconds` after `stored` was written; None if nothing changed.

    A change of state, step, incarnation (or the request for one), accuracy, checkpoint or reason of the problem is written at once. So is a demand
    with another number (see `demand`), but not within DEMAND_INTERVAL of the last such write, which was `since_demand` seconds ago.
    Other changes are written once the last write is QUIET_INTERVAL old. A change of the time alone counts as none.
    """
    if stored is None:
        return 0.0
    if _without_time(stored) == _without_time(wanted):
        return None
    if _urgent(stored) != _urgent(wanted):
        return 0.0
    quiet = max(0.0, QUIET_INTERVAL - seconds)
    return min(quiet, max(0.0, DEMAND_INTERVAL - since_demand)) if asks_anew(stored, wanted) else quiet


def asks_anew(stored: DriverStatus | None, wanted: DriverStatus) -> bool:
    """Whether `wanted` has a demand with another number, for pods or for CPUs of reward pools, or nothing is stored yet."""
    return (stored and _numbers(stored)) != _numbers(wanted)


def _numbers(status: DriverStatus) -> list[tuple[int, int] | None]:
    demand = status.demand or Demand()
    parts = (demand.rollout, demand.reward, demand.environment)
    return [(part.incarnation, part.number) if part else None for part in parts]


def _without_time(status: DriverStatus) -> DriverStatus:
    training = status.training and status.training.model_copy(update={"updated": None})
    return replace(status, training=training)


def _urgent(status: DriverStatus) -> tuple[object, ...]:
    training, demand = status.training, status.demand
    progress = training and (training.incarnation, training.state, training.step, training.accuracy)
    # Each error of a grader has a message of its own: not every one is worth a request.
    problem = status.problem and (status.problem.reason, status.problem.field, status.problem.fatal)
    return progress, demand and demand.incarnation_request, status.checkpoint, problem
