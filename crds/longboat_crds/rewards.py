"""`spec.rewards`: what a response is worth."""

from collections.abc import Sequence
from typing import ClassVar

from pydantic import Field

from longboat_crds.base import LIST_TYPE, ApiModel, ColumnName, CpuQuantity, ObjectName, Opaque, PoolName, ReferenceName
from longboat_crds.expressions import both, choose, constant, either, equals, exactly_one, field, negation, present
from longboat_crds.quantities import millicores
from longboat_crds.reward_kinds import RewardIsolation, RewardKind, RewardSignature
from longboat_crds.rules import FieldError, Rule


class ConfigMapFunction(ApiModel):
    """A function in a Python file kept in a ConfigMap of the job's namespace."""

    name: ReferenceName = Field(description="Name of the ConfigMap.")
    key: str = Field(
        min_length=1,
        max_length=253,
        pattern=r"^[-._a-zA-Z0-9]+$",
        description="Key of the file in the ConfigMap, such as `reward.py`.",
    )
    function: str = Field(
        min_length=1, max_length=128, pattern=r"^[A-Za-z_]\w*$", description="Name of the function in that file."
    )


_SCORER = equals(field("kind"), constant(RewardKind.REASONING_GYM.value))


class RewardSpec(ApiModel):
    """One reward. A sample's reward is the weighted sum over all of them."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            choose(_SCORER, both(negation(present("function")), negation(present("configMap"))), constant(True)),
            "kind ReasoningGym uses the task's own scorer: leave out function and configMap",
            "function",
            FieldError.FORBIDDEN,
        ),
        Rule(
            choose(_SCORER, constant(True), exactly_one("function", "configMap")),
            "give exactly one of function and configMap",
            "function",
            FieldError.REQUIRED,
        ),
        Rule(
            either(negation(_SCORER), equals(field("signature"), constant(RewardSignature.LONGBOAT.value))),
            "kind ReasoningGym calls no function: leave out signature",
            "signature",
            FieldError.FORBIDDEN,
        ),
    )

    name: ObjectName = Field(description="Name of the reward in metrics; no two rewards share one.")
    kind: RewardKind = RewardKind.FUNCTION
    signature: RewardSignature = RewardSignature.LONGBOAT
    function: str | None = Field(
        None,
        max_length=512,
        pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$|^/[^:]+\.py:[A-Za-z_]\w*$",
        description="`module:function`, or `/path/file.py:function`.",
    )
    config_map: ConfigMapFunction | None = None
    parameters: Opaque = Field(default_factory=dict, description="Keyword arguments passed to the function.")
    isolation: RewardIsolation = RewardIsolation.AUTO
    pool: PoolName | None = Field(
        None, description="Pool of rewardPools that grades it. Required if there are several; with one pool, that one."
    )
    weight: float = Field(1.0, ge=-1e6, le=1e6, description="Factor of this reward in the sum.")
    timeout_seconds: float = Field(
        30.0, gt=0.0, le=3600.0, description="A grade that takes longer is killed and counted as a timeout."
    )
    timeout_score: float | None = Field(
        None,
        ge=-1e6,
        le=1e6,
        description="Score of a grade that timed out; like any score it is multiplied by weight and added to those of the other "
        "rewards. Default: the least that this reward added to any sample of the step's batch, but at most 0, so that being slow "
        "never pays.",
    )
    domains: list[ColumnName] = Field(
        default_factory=list,
        max_length=64,
        description="Grade only rows of these domains (column dataset.columns.domain); empty means all.",
        json_schema_extra={LIST_TYPE: "set"},
    )


DEFAULT_POOL = "default"
MAX_POOLS = 8
# Pods of all pools together fit into the status (`status.MAX_PODS`), and a pod's number into its name (`base.JOB_NAME_MAX_LENGTH`).
MAX_POOL_REPLICAS = 512


# What a pool keeps for each of its pods unless it says otherwise.
POD_MIN_MILLICORES = 100


class RewardCpuSpec(ApiModel):
    """CPUs of the graders of all reward pools together; they move to the pools that can use them."""

    total: CpuQuantity = Field(
        description="CPUs of all reward pods' `graders` containers together, those of pods that are being deleted included. It is never "
        "exceeded, not even for a moment."
    )


class PoolCpuSpec(ApiModel):
    """Bounds of a pool's part of rewardCpu.total, for all of its pods together."""

    min: CpuQuantity | None = Field(
        None, description="CPUs that the pool keeps, whatever others ask for. Default: 100m a pod, but at most max."
    )
    max: CpuQuantity | None = Field(
        None, description="CPUs that the pool never has more than. Default: no bound of its own."
    )


class RewardPoolSpec(ApiModel):
    """Reward pods with graders in them, for the rewards that name the pool. One queue feeds all pods of a pool."""

    name: PoolName = Field(description="Name of the pool; it is a part of its pods' names.")
    replicas: int = Field(1, ge=1, le=MAX_POOL_REPLICAS, description="Reward pods.")
    graders_per_pod: int = Field(1, ge=1, le=256, description="Grades that run at once in one pod.")
    template: ObjectName | None = Field(
        None,
        description="Entry of rewardTemplates in the runtime template (runtimeRef) that the pool's pods are made with: image, memory, "
        "network and so on. Default: none, so they are made as roles.reward says.",
    )
    cpu: PoolCpuSpec | None = Field(None, description="Only with rewardCpu: bounds of the pool's part of its total.")

    def cpu_bounds(self, total: int) -> tuple[int, int]:
        """Fewest and most millicores of the pool, given the total of rewardCpu."""
        bounds = self.cpu or PoolCpuSpec()
        most = min(millicores(bounds.max), total) if bounds.max else total
        least = millicores(bounds.min) if bounds.min else min(POD_MIN_MILLICORES * self.replicas, most)
        return least, most


def default_pools() -> list[RewardPoolSpec]:
    """The pools of a job that names none."""
    return [RewardPoolSpec(name=DEFAULT_POOL)]


def rewards_of(rewards: Sequence[RewardSpec], pool: str) -> dict[int, RewardSpec]:
    """The rewards that a pool grades, by their places in `rewards`: those that name it, or no pool where there is no other."""
    return {place: reward for place, reward in enumerate(rewards) if reward.pool in {None, pool}}
