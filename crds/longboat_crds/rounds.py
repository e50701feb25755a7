"""`spec.rounds`: how many steps, of how many prompts, by which round policy."""

from enum import StrEnum

from pydantic import Field

from longboat_crds.base import ApiModel, Seconds, Seed


class RoundPolicyName(StrEnum):
    """The rule that launches, keeps and closes."""

    SYNCHRONOUS = "Synchronous"


class RoundsSpec(ApiModel):
    """A round is one optimizer step and the rollout that feeds it."""

    policy: RoundPolicyName = RoundPolicyName.SYNCHRONOUS
    steps: int = Field(
        ge=1, le=10_000_000, description="Optimizer steps of the whole job. It may be raised while the job runs."
    )
    prompts_per_round: int = Field(
        ge=1, le=65_536, description="Prompts trained in one step; samples = this times algorithm.groupSize."
    )
    seed: Seed = Field(0, description="Seed of every sample; with Synchronous a resumed job repeats bit for bit.")
    stage_deadline_seconds: Seconds = Field(
        1800,
        ge=1,
        description="A stage (generate, reward, train, publish, checkpoint) longer than this is reported with stacks.",
    )
