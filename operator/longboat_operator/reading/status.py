"""Reads a status that another version may have written. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

from longboat_crds.base import Role
from longboat_crds.status import (
    EnvironmentDemand,
    EnvironmentGrant,
    PodsGrant,
    RewardDemand,
    RewardGrant,
    RLJobStatus,
    RolloutDemand,
    RolloutGrant,
)
from longboat_crds.tolerance import read_known

_Demand = TypeVar("_Demand", RolloutDemand, RewardDemand, EnvironmentDemand)

# The fields that tell reshapes apart; others are measured later.
RESHAPE_IDENTITY = ("step", "kind", "tensorParallel", "reason", "failure")


def read_status(status: Mapping[str, Any]) -> RLJobStatus:
    """Reads the parts of the status that this version knows and can read (`read_known`).

    During an upgrade, or after a step back, the stored status may come from a newer operator or driver.
    """
    return read_known(RLJobStatus, status)


def rollout_demand(status: RLJobStatus) -> RolloutDemand | None:
    """Returns the demand for rollout pods that counts, the current incarnation's; None if it has made none."""
    return _of_incarnation(status, status.demand.rollout if status.demand else None)


def rollout_grant(status: RLJobStatus) -> RolloutGrant | None:
    """Returns the job's grant of rollout pods; None if it has none."""
    grant = status.allocation.grant if status.allocation else None
    return grant.rollout if grant else None


def reward_demand(status: RLJobStatus) -> RewardDemand | None:
    """Returns the demand for CPUs of reward pods that counts, the current incarnation's; None if it has made none."""
    return _of_incarnation(status, status.demand.reward if status.demand else None)


def reward_grant(status: RLJobStatus) -> RewardGrant | None:
    """Returns the reward pools' grant of CPUs; None if they have none."""
    grant = status.allocation.grant if status.allocation else None
    return grant.reward if grant else None


def environment_demand(status: RLJobStatus) -> EnvironmentDemand | None:
    """Returns the demand for environment pods that counts, the current incarnation's; None if it has made none."""
    return _of_incarnation(status, status.demand.environment if status.demand else None)


def environment_grant(status: RLJobStatus) -> EnvironmentGrant | None:
    """Returns the job's grant of environment pods; None if it has none."""
    grant = status.allocation.grant if status.allocation else None
    return grant.environment if grant else None


def _of_incarnation(status: RLJobStatus, demand: _Demand | None) -> _Demand | None:
    """Returns a demand if the current incarnation has made it, else None."""
    current = status.allocation.incarnation if status.allocation else None
    return demand if demand and current and demand.incarnation == current.number else None


def pods_granted(status: RLJobStatus) -> Iterator[tuple[Role, str, PodsGrant]]:
    """Yields the grants of pods, each with its role and pool (empty for rollout pods)."""
    if rollout := rollout_grant(status):
        yield Role.ROLLOUT, "", rollout
    environment = environment_grant(status)
    for pool in (environment.pools if environment else None) or ():
        yield Role.ENVIRONMENT, pool.name, pool


def drained_pods(status: RLJobStatus) -> frozenset[str]:
    """Returns the pods in which nothing runs any more, as the current incarnation says."""
    rollout, environment = rollout_demand(status), environment_demand(status)
    demands = [*([rollout] if rollout else []), *((environment.pools if environment else None) or ())]
    return frozenset(name for demand in demands for name in demand.drained or ())
