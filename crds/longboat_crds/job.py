"""RLJob: one post-training job."""

from enum import StrEnum
from typing import ClassVar

from pydantic import Field

from longboat_crds.algorithm import AlgorithmSpec
from longboat_crds.base import ApiModel, ReferenceName, Seconds, list_map
from longboat_crds.checkpoint import CheckpointSpec
from longboat_crds.coherence import COHERENCE
from longboat_crds.dataset import DatasetSpec
from longboat_crds.failure import FailurePolicySpec
from longboat_crds.model import ModelSpec
from longboat_crds.rewards import RewardPoolSpec, RewardSpec
from longboat_crds.rollout import RolloutSpec
from longboat_crds.rounds import RoundsSpec
from longboat_crds.rules import Rule
from longboat_crds.trainer import TrainerSpec


class RuntimeKind(StrEnum):
    """Scope of the runtime template: the job's namespace, or the cluster."""

    RL_RUNTIME = "RLRuntime"
    CLUSTER_RL_RUNTIME = "ClusterRLRuntime"


class RuntimeRef(ApiModel):
    """The platform team's template: images, pod templates, volumes. A job keeps the version it started with."""

    kind: RuntimeKind = RuntimeKind.CLUSTER_RL_RUNTIME
    name: ReferenceName = Field(description="Name of the template.")
    renew_on_resume: bool = Field(
        False,
        description="A suspended job takes the template's current version when it resumes, and may name another template.",
    )


class RLJobSpec(ApiModel):
    """What the researcher asks for."""

    rules: ClassVar[tuple[Rule, ...]] = COHERENCE

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
    reward_pool: RewardPoolSpec = Field(default_factory=RewardPoolSpec)
    trainer: TrainerSpec = Field(default_factory=TrainerSpec)
    checkpoint: CheckpointSpec = Field(default_factory=CheckpointSpec)
    failure_policy: FailurePolicySpec = Field(default_factory=FailurePolicySpec)
    suspend: bool = Field(
        False, description="True saves a checkpoint and deletes all pods; false again resumes from there."
    )
    ttl_seconds_after_finished: Seconds | None = Field(
        None, description="Delete the job this long after it finished. Default: never."
    )
