"""Reads a status that another version may have written. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from longboat_crds.status import RewardDemand, RewardGrant, RLJobStatus, RolloutDemand, RolloutGrant
from longboat_crds.tolerance import read_known

# The fields that tell reshapes apart; others are measured later.
RESHAPE_IDENTITY = ("step", "kind", "tensorParallel", "reason", "failure")


def read_status(status: Mapping[str, Any]) -> RLJobStatus:
    """Reads the parts of the status that this version knows and can read (`read_known`).

    During an upgrade, or after a step back, the stored status may come from a newer operator or driver.
    """
    return read_known(RLJobStatus, status)


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
