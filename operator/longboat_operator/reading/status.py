"""Reads a status that another version may have written. Pure."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from longboat_crds.status import RewardDemand, RewardGrant, RLJobStatus, RolloutDemand, RolloutGrant

# The fields that tell reshapes apart; others are measured later.
RESHAPE_IDENTITY = ("step", "kind", "tensorParallel", "reason", "failure")


def read_status(status: Mapping[str, Any]) -> RLJobStatus:
    """Reads the status without fields that this version doesn't know.

    During an upgrade, or after a step back, the stored status may come from a newer operator or driver.

    Raises:
        ValidationError: the fields that this version knows don't fit its schema.
    """
    try:
        return RLJobStatus.model_validate(status)
    except ValidationError as error:
        unknown = [e["loc"] for e in error.errors() if e["type"] == "extra_forbidden"]
        if not unknown:
            raise
        readable = copy.deepcopy(dict(status))
        for location in unknown:
            parent: Any = readable
            for key in location[:-1]:
                parent = parent[key]
            del parent[location[-1]]
        return RLJobStatus.model_validate(readable)


def rollout_demand(status: RLJobStatus) -> RolloutDemand | None:
    """Returns the demand for rollout pods that counts, the current incarnation's; None if it has made none."""
    demand = status.demand.rollout if status.demand else None
    current = status.allocation.incarnation if status.allocation else None
    return demand if demand and current and demand.incarnation == current.number else None


def rollout_grant(status: RLJobStatus) -> RolloutGrant | None:
    """Returns the job's grant of rollout pods; None if it has none."""
    grant = status.allocation.grant if status.allocation else None
    return grant.rollout if grant else None


def reward_demand(status: RLJobStatus) -> RewardDemand | None:
    """Returns the demand for CPUs of reward pods that counts, the current incarnation's; None if it has made none."""
    demand = status.demand.reward if status.demand else None
    current = status.allocation.incarnation if status.allocation else None
    return demand if demand and current and demand.incarnation == current.number else None


def reward_grant(status: RLJobStatus) -> RewardGrant | None:
    """Returns the reward pools' grant of CPUs; None if they have none."""
    grant = status.allocation.grant if status.allocation else None
    return grant.reward if grant else None
