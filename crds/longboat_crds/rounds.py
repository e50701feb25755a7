"""`spec.rounds`: how many steps, of how many prompts, by which round policy."""

from enum import StrEnum
from typing import ClassVar

from pydantic import Field

from longboat_crds.base import ApiModel, Seconds, Seed, list_map
from longboat_crds.expressions import either, empty, equals, field, if_present, total
from longboat_crds.rules import Rule

# Of TailBatching, where the job doesn't say. More responses than a group needs cut its long ones off for good; more prompts don't.
PROMPT_OVERCOMMIT = 1.25
SAMPLE_OVERCOMMIT = 1.0
# Of BoundedAsync: one step of overlap hides all that the trainer does; more only makes tokens older.
MAX_STALENESS = 1


class RoundPolicyName(StrEnum):
    """The rule that launches, keeps and closes.

    Synchronous waits for every response of every round. TailBatching launches more prompts than a short round needs, keeps those
    that are complete first and leaves the rest to rare long rounds. Both train on responses of the newest weights only.
    ContinueUnfinished ends a round as TailBatching does, and has the rest go on in the next round, under new weights, behind the
    tokens that they have. BoundedAsync begins rounds while earlier ones are trained. Both train on tokens of older weights too.
    """

    SYNCHRONOUS = "Synchronous"
    TAIL_BATCHING = "TailBatching"
    CONTINUE_UNFINISHED = "ContinueUnfinished"
    BOUNDED_ASYNC = "BoundedAsync"


# They train on tokens of older weights.
OFF_POLICY = (RoundPolicyName.CONTINUE_UNFINISHED, RoundPolicyName.BOUNDED_ASYNC)


class OvercommitMode(StrEnum):
    """Fixed launches promptOvercommit times promptsPerRound prompts in every short round.

    Auto begins with that. Once a period of short and long rounds has ended it takes the factor among 1, 1.125, 1.25 and 1.5 whose
    rounds take least time by simulation, on the response lengths and step times that were measured; now and then it looks again.
    """

    FIXED = "Fixed"
    AUTO = "Auto"


class DomainQuota(ApiModel):
    """So many prompts of every round are of this domain."""

    domain: str = Field(min_length=1, max_length=128, description="Value of the column dataset.columns.domain.")
    prompts: int = Field(ge=1, le=65_536, description="Prompts of the domain trained in one step.")


class RoundsSpec(ApiModel):
    """A round is one optimizer step and the rollout that feeds it."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            if_present(
                "quotas",
                lambda quotas: either(empty(quotas), equals(total("quotas", "prompts"), field("promptsPerRound"))),
            ),
            "must add up to promptsPerRound: change a quota's prompts, or promptsPerRound",
            "quotas",
        ),
    )

    policy: RoundPolicyName = RoundPolicyName.SYNCHRONOUS
    steps: int = Field(
        ge=1,
        le=10_000_000,
        description="Optimizer steps of the whole job. It may be raised until the job has succeeded; the driver follows from the next "
        "step on, and trainer.optimizer.schedule is stretched. To go on with a job that has succeeded, create another one with "
        "checkpoint.resumeFrom.",
    )
    prompts_per_round: int = Field(
        ge=1, le=65_536, description="Prompts trained in one step; samples = this times algorithm.groupSize."
    )
    quotas: list[DomainQuota] | None = Field(
        None,
        min_length=1,
        max_length=64,
        description="How promptsPerRound is divided over the domains of the dataset, each of which is named. Holds in every round. "
        "Default: prompts of all domains as they come.",
        json_schema_extra=list_map("domain"),
    )
    prompt_overcommit: float | None = Field(
        None,
        ge=1.0,
        le=4.0,
        description="With TailBatching and ContinueUnfinished: a short round has this times promptsPerRound prompts in the engines. "
        f"Default: {PROMPT_OVERCOMMIT:g}.",
    )
    prompt_overcommit_mode: OvercommitMode | None = Field(
        None, description="With TailBatching: whether promptOvercommit stays as it is. Default: Fixed."
    )
    sample_overcommit: float | None = Field(
        None,
        ge=1.0,
        le=4.0,
        description="With TailBatching: a short round launches this times algorithm.groupSize responses to a prompt and keeps the "
        "first. More than 1 favours short responses within a group. "
        f"Default: {SAMPLE_OVERCOMMIT:g}.",
    )
    max_length_bias: float | None = Field(
        None,
        ge=0.0,
        le=1.0,
        description="With TailBatching: the largest Kolmogorov-Smirnov distance between trained response lengths and those of first "
        "launches. Once the lower 95 % bound of status.training.lengthBias exceeds it, the job doesn't race for a period, and says "
        "so. Default: no limit.",
    )
    audit_every: int | None = Field(
        None,
        ge=2,
        le=10_000,
        description="With TailBatching: every so many short rounds one doesn't race. Its responses, none of which is cut, show "
        "beside the estimate of status.training.lengthBias what racing does to lengths. Default: none.",
    )
    max_staleness: int | None = Field(
        None,
        ge=1,
        le=64,
        description="With BoundedAsync: how many steps a trained token's weights may be behind those that are trained. So many rounds "
        f"are begun ahead. Default: {MAX_STALENESS}.",
    )
    seed: Seed = Field(
        0,
        description="Seed of every sample and of the minibatches; docs/reproducibility.md says what repeats bit for bit, and when.",
    )
    stage_deadline_seconds: Seconds = Field(
        1800,
        ge=1,
        description="A stage (generate, reward, train, publish, checkpoint) longer than this is reported with stacks.",
    )
