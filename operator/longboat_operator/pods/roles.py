"""The table of roles: what differs between the kinds of pod that a job is made of. Pure.

Rules that concern one role by nature name it in place: only the driver is given a number and has the Ray head.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from longboat_crds.base import Role
from longboat_crds.environments import environments_of
from longboat_crds.failure import FailurePolicySpec
from longboat_crds.job import RLJobSpec
from longboat_crds.pools import PoolSpec
from longboat_crds.reasons import Reason
from longboat_crds.rewards import graded_pools, rewards_of
from longboat_crds.runtime import PoolTemplate, RLRuntimeSpec
from longboat_operator.pods.driver import RAY_HEAD, driver_pod_spec
from longboat_operator.pods.names import JobRef, Place, numbered
from longboat_operator.pods.workers import (
    ENVIRONMENT,
    GRADERS,
    environment_pod_spec,
    reward_pod_spec,
    rollout_pod_spec,
    trainer_pod_spec,
)


@dataclass(frozen=True, slots=True)
class PoolTraits:
    """Holds what sets the pools of a role apart. In one of their containers the user's own code runs."""

    field: str
    """The field of the job's spec that has them."""
    specs: Callable[[RLJobSpec], Sequence[PoolSpec]]
    templates_field: str
    """The field of the runtime template that has the entries which they may name."""
    templates: Callable[[RLRuntimeSpec], Sequence[PoolTemplate]]
    lacks_template: Reason
    """Why a job waits for such an entry."""
    container: str
    """The container with the user's code."""
    at_once_field: str
    """The field of a pool that says how much of it runs at once in a pod."""
    runs: str
    """What runs there, in the plural."""
    memories: Callable[[RLJobSpec, str], Mapping[str, str]]
    """What each of these may hold, as a quantity, by the path in the spec that says it; the text is the pool."""
    lacks_memory: Reason
    """Why a job waits for a container with more memory."""


@dataclass(frozen=True, slots=True)
class RoleTraits:
    """Holds what sets a role apart."""

    places: Callable[[RLJobSpec], tuple[Place, ...]]
    """Where the spec asks for pods."""
    pod_spec: Callable[[JobRef, RLJobSpec, RLRuntimeSpec, str], dict[str, Any]]
    """What only its pods' spec has; the text is the pod's pool, empty if the role has none."""
    containers: tuple[str, ...]
    """Containers that the operator creates; the first is the one whose logs people want."""
    limit: Callable[[FailurePolicySpec], int]
    """Incidents since the last new step beyond which the job fails."""
    limit_field: str
    """The field of spec.failurePolicy that sets it."""
    every_pod_needed: bool = False
    """Whether rounds need all of its pods; of other roles one is enough, or one of each pool."""
    mounts_checkpoints: bool = False
    """Whether its pods mount the checkpoint claim."""
    scaled: bool = False
    """Whether the number of its pods, or of those of each pool, is granted: as many as the driver asks for, within the spec's bounds."""
    cpu_container: str | None = None
    """The container whose CPUs the status shows."""
    pools: PoolTraits | None = None
    """Its pools, if it has any (`Role.has_pools`)."""

    def pool_specs(self, spec: RLJobSpec) -> Sequence[PoolSpec]:
        """Returns its pools in a job; none if it has no pools."""
        return self.pools.specs(spec) if self.pools else ()

    def template_of(self, spec: RLJobSpec, pool: str) -> str | None:
        """Returns the entry of the runtime template that a pool names; None if it names none, or there is no such pool."""
        return next((each.template for each in self.pool_specs(spec) if each.name == pool), None)


def _pool_places(pools: Sequence[PoolSpec]) -> tuple[Place, ...]:
    return tuple(chain.from_iterable(numbered(pool.replicas, pool.name) for pool in pools))


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
        scaled=True,
    ),
    Role.REWARD: RoleTraits(
        places=lambda spec: _pool_places(graded_pools(spec.reward_pools, spec.rewards)),
        pod_spec=reward_pod_spec,
        containers=("reward", GRADERS),
        limit=lambda policy: policy.max_reward_restarts,
        limit_field="maxRewardRestarts",
        cpu_container=GRADERS,
        pools=PoolTraits(
            field="rewardPools",
            specs=lambda spec: graded_pools(spec.reward_pools, spec.rewards),
            templates_field="rewardTemplates",
            templates=lambda runtime: runtime.reward_templates,
            lacks_template=Reason.REWARD_TEMPLATE_NOT_FOUND,
            container=GRADERS,
            at_once_field="gradersPerPod",
            runs="programs",
            memories=lambda spec, pool: {
                f"spec.rewards[{number}].sandbox.memory": reward.sandbox.memory
                for number, reward in rewards_of(spec.rewards, pool).items()
                if reward.sandbox
            },
            lacks_memory=Reason.GRADERS_MEMORY_TOO_SMALL,
        ),
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
    Role.ENVIRONMENT: RoleTraits(
        places=lambda spec: _pool_places(spec.environment_pools or ()),
        pod_spec=environment_pod_spec,
        containers=("episodes", ENVIRONMENT),
        limit=lambda policy: policy.max_environment_restarts,
        limit_field="maxEnvironmentRestarts",
        scaled=True,
        cpu_container=ENVIRONMENT,
        pools=PoolTraits(
            field="environmentPools",
            specs=lambda spec: spec.environment_pools or (),
            templates_field="environmentTemplates",
            templates=lambda runtime: runtime.environment_templates or (),
            lacks_template=Reason.ENVIRONMENT_TEMPLATE_NOT_FOUND,
            container=ENVIRONMENT,
            at_once_field="episodesPerPod",
            runs="episodes",
            memories=lambda spec, pool: {
                f"spec.environments[{number}].limits.memory": environment.limits.memory
                for number, environment in environments_of(spec.environments, pool).items()
            },
            lacks_memory=Reason.ENVIRONMENT_MEMORY_TOO_SMALL,
        ),
    ),
}

SCALED_ROLES = tuple(role for role, traits in ROLES.items() if traits.scaled)
