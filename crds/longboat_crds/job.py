"""`spec` of an RLJob: one post-training job."""

from enum import StrEnum
from typing import Annotated, Any, ClassVar

from pydantic import Field, model_validator

from longboat_crds.algorithm import AlgorithmSpec
from longboat_crds.base import ApiModel, Opaque, ReferenceName, Seconds, list_map
from longboat_crds.checkpoint import CheckpointSpec
from longboat_crds.coherence import COHERENCE
from longboat_crds.dataset import DatasetSpec
from longboat_crds.environments import MAX_ENVIRONMENTS, EnvironmentPoolSpec, EnvironmentSpec
from longboat_crds.failure import FailurePolicySpec
from longboat_crds.metadata import KEY_RULES, Annotations, Labels
from longboat_crds.model import ModelSpec
from longboat_crds.pools import MAX_POOLS
from longboat_crds.rewards import DEFAULT_POOL, RewardCpuSpec, RewardPoolSpec, RewardSpec, default_pools
from longboat_crds.rollout import RolloutSpec
from longboat_crds.rounds import RoundsSpec
from longboat_crds.rules import Changeable, Removed, Rule
from longboat_crds.samples import SamplesSpec
from longboat_crds.tracking import TrackingSpec
from longboat_crds.trainer import TrainerSpec


class RuntimeKind(StrEnum):
    """Scope of the runtime template: the job's namespace, or the cluster."""

    RL_RUNTIME = "RLRuntime"
    CLUSTER_RL_RUNTIME = "ClusterRLRuntime"


class RuntimeRef(ApiModel):
    """The platform team's template: images, pod templates, volumes. A job keeps the version it started with, except by renewOnResume."""

    kind: Annotated[RuntimeKind, Changeable.WITH_RENEWAL] = RuntimeKind.CLUSTER_RL_RUNTIME
    name: Annotated[ReferenceName, Changeable.WITH_RENEWAL] = Field(description="Name of the template.")
    renew_on_resume: Annotated[bool, Changeable.ANY_TIME] = Field(
        default=False,
        description="A suspended job takes the template's current version when it resumes, and may name another template.",
    )


class RLJobSpec(ApiModel):
    """What the researcher asks for."""

    rules: ClassVar[tuple[Rule, ...]] = (*COHERENCE, *KEY_RULES)

    labels: Annotated[Labels | None, Changeable.ANY_TIME] = Field(
        default=None,
        description="Labels of all objects of the job, such as a cost center; those of the runtime template take precedence. An edit "
        "reaches pods, Secrets and ControllerRevisions when they are created, and other objects at once; the claim keeps labels that are "
        "removed here. Labels of the RLJob itself aren't copied.",
    )
    annotations: Annotated[Annotations | None, Changeable.ANY_TIME] = Field(
        default=None,
        description="Annotations of all objects of the job, as for labels; the driver's ServiceAccount has the runtime template's alone.",
    )
    runtime_ref: RuntimeRef
    model: ModelSpec
    dataset: DatasetSpec
    algorithm: AlgorithmSpec = Field(default_factory=AlgorithmSpec)
    rounds: RoundsSpec
    rollout: RolloutSpec
    rewards: list[RewardSpec] = Field(
        min_length=1,
        max_length=16,
        description="Reward functions; a sample's reward is their weighted sum.",
        json_schema_extra=list_map("name"),
    )
    reward_pools: Annotated[list[RewardPoolSpec], Changeable.WHILE_SUSPENDED] = Field(
        default_factory=default_pools,
        min_length=1,
        max_length=MAX_POOLS,
        description="Reward pods and the graders in them. Several pools are for rewards that can't share a pod: another image, "
        "toolchain, memory or network. A sample is graded by all of them at once.",
        json_schema_extra=list_map("name"),
    )
    reward_cpu: Annotated[RewardCpuSpec | None, Changeable.WHILE_SUSPENDED] = Field(
        default=None,
        description="CPUs of the graders of all pools together, which move to the pools that can use them. Default: none move; graders "
        "have what the runtime template says.",
    )
    environments: list[EnvironmentSpec] | None = Field(
        default=None,
        min_length=1,
        max_length=MAX_ENVIRONMENTS,
        description="Programs that play episodes of several turns with the model. Each row of the dataset is played by one of them. Default: "
        "a sample is one response to a row's prompt.",
        json_schema_extra=list_map("name"),
    )
    environment_pools: Annotated[list[EnvironmentPoolSpec] | None, Changeable.WHILE_SUSPENDED] = Field(
        default=None,
        min_length=1,
        max_length=MAX_POOLS,
        description="Pods in which environments run. Environments that need different images, memory or networks have pools of their own.",
        json_schema_extra=list_map("name"),
    )
    trainer: TrainerSpec = Field(default_factory=TrainerSpec)
    checkpoint: CheckpointSpec = Field(default_factory=CheckpointSpec)
    samples: Annotated[SamplesSpec | None, Changeable.ANY_TIME] = None
    rollouts: Annotated[SamplesSpec | None, Removed("it is called samples now")] = None
    reward_pool: Annotated[Opaque | None, Removed("give replicas and gradersPerPod of a pool in rewardPools")] = None
    failure_policy: Annotated[FailurePolicySpec, Changeable.ANY_TIME] = Field(default_factory=FailurePolicySpec)
    tracking: Annotated[TrackingSpec | None, Changeable.WHILE_SUSPENDED] = None
    suspend: Annotated[bool, Changeable.ANY_TIME] = Field(
        default=False, description="True saves a checkpoint and deletes all pods; false again resumes from there."
    )
    ttl_seconds_after_finished: Annotated[Seconds | None, Changeable.ANY_TIME] = Field(
        default=None, description="Delete the job this long after it finished. Default: never."
    )

    @model_validator(mode="before")
    @classmethod
    def _read_renamed(cls, value: Any) -> Any:
        """Reads a stored job with fields of earlier versions: `rollouts`, now `samples`, and `rewardPool`, now an entry of `rewardPools`.

        `rewardPool` overrides the default of `rewardPools`, which the API server has filled in.
        """
        if not isinstance(value, dict):
            return value
        value = dict(value)
        if (samples := value.pop("rollouts", None)) is not None:
            value.setdefault("samples", samples)
        pool, pools = value.pop("rewardPool", None), value.get("rewardPools") or [{"name": DEFAULT_POOL}]
        if isinstance(pool, dict) and [named.get("name") for named in pools] == [DEFAULT_POOL]:
            value["rewardPools"] = [{"name": DEFAULT_POOL, **pool}]
        return value
