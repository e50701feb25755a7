"""The table of roles: what differs between the four kinds of pod that a job is made of. Pure.

Rules that concern one role by nature name it in place: only the driver is given a number and has the Ray head, only rollout
pods are scaled.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any

from longboat_crds.base import Role
from longboat_crds.failure import FailurePolicySpec
from longboat_crds.job import RLJobSpec
from longboat_crds.runtime import RLRuntimeSpec
from longboat_operator.pods.driver import RAY_HEAD, driver_pod_spec
from longboat_operator.pods.names import JobRef, Place, numbered
from longboat_operator.pods.workers import GRADERS, reward_pod_spec, rollout_pod_spec, trainer_pod_spec


@dataclass(frozen=True, slots=True)
class RoleTraits:
    """Holds what sets a role apart."""

    places: Callable[[RLJobSpec], tuple[Place, ...]]
    """Where the spec asks for pods."""
    pod_spec: Callable[[JobRef, RLJobSpec, RLRuntimeSpec, str], dict[str, Any]]
    """What only its pods' spec has; the text is the pool of a reward pod."""
    containers: tuple[str, ...]
    """Containers that the operator creates; the first is the one whose logs people want."""
    limit: Callable[[FailurePolicySpec], int]
    """Incidents since the last new step beyond which the job fails."""
    limit_field: str
    """The field of spec.failurePolicy that sets it."""
    every_pod_needed: bool = False
    """Whether rounds need all of its pods; of other roles one is enough, of reward pods one of each pool."""
    mounts_checkpoints: bool = False
    """Whether its pods mount the checkpoint claim."""
    cpu_container: str | None = None
    """The container whose CPUs the status shows."""


# In start order: the driver's pod has the head that all others wait for.
ROLES: Mapping[Role, RoleTraits] = {
    Role.DRIVER: RoleTraits(
        places=lambda _: numbered(1),
        pod_spec=lambda job, spec, runtime, _: driver_pod_spec(job, spec, runtime.command),
        containers=("driver", RAY_HEAD),
        limit=lambda policy: policy.max_driver_restarts,
        limit_field="maxDriverRestarts",
        every_pod_needed=True,
        mounts_checkpoints=True,
    ),
    Role.ROLLOUT: RoleTraits(
        places=lambda spec: numbered(spec.rollout.replicas),
        pod_spec=lambda job, spec, runtime, _: rollout_pod_spec(job, spec, runtime.command),
        containers=("rollout",),
        limit=lambda policy: policy.max_rollout_restarts,
        limit_field="maxRolloutRestarts",
    ),
    Role.REWARD: RoleTraits(
        places=lambda spec: tuple(
            chain.from_iterable(numbered(pool.replicas, pool.name) for pool in spec.reward_pools)
        ),
        pod_spec=reward_pod_spec,
        containers=("reward", GRADERS),
        limit=lambda policy: policy.max_reward_restarts,
        limit_field="maxRewardRestarts",
        cpu_container=GRADERS,
    ),
    Role.TRAINER: RoleTraits(
        places=lambda spec: numbered(spec.trainer.replicas),
        pod_spec=lambda job, spec, runtime, _: trainer_pod_spec(job, spec, runtime.command),
        containers=("trainer",),
        limit=lambda policy: policy.max_trainer_restarts,
        limit_field="maxTrainerRestarts",
        every_pod_needed=True,
        mounts_checkpoints=True,
    ),
}
