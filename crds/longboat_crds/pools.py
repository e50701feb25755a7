"""Defines pools of pods: what those of rewards and those of environments have in common."""

from typing import ClassVar

from pydantic import Field

from longboat_crds.base import ApiModel, ObjectName, PoolName
from longboat_crds.expressions import either, field, matches, negation
from longboat_crds.rules import Rule

MAX_POOLS = 8
# Pods of all pools of a role together fit into the status (`status.MAX_PODS`), and a pod's number into its name
# (`base.JOB_NAME_MAX_LENGTH`).
MAX_POOL_REPLICAS = 512


class PoolSpec(ApiModel):
    """Pods of one role that are made alike."""

    # Otherwise pods of two jobs could have one name: x-reward-driver-0-a0 would also be the driver of job x-reward.
    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            negation(
                either(
                    matches(field("name"), "(^|-)(driver|rollout|trainer)$"),
                    matches(field("name"), "(^|-)(reward|environment)-"),
                )
            ),
            "must not have driver, rollout or trainer as its last word, nor reward or environment before another word, since pods of another "
            "job could have the same names: choose another name",
            "name",
            new_only=True,
        ),
    )

    name: PoolName = Field(description="Name of the pool; it is a part of its pods' names.")
    replicas: int = Field(default=1, ge=1, le=MAX_POOL_REPLICAS, description="Pods of the pool.")
    template: ObjectName | None = None

    @property
    def at_once(self) -> int:
        """Most grades or episodes that run at once in one pod."""
        raise NotImplementedError
