"""`spec.rounds`: how many steps, of how many prompts, by which round policy."""

from enum import StrEnum
from typing import Annotated, ClassVar

from pydantic import Field

from longboat_crds.base import READER_DEFAULT, ApiModel, Seconds, Seed, list_map
from longboat_crds.expressions import either, empty, equals, field, if_present, total
from longboat_crds.rules import Changeable, Removed, Rule

# Defaults of the overcommits. Launching more responses than a group needs cuts its long ones off for good; launching more prompts doesn't.
PROMPT_OVERCOMMIT = 1.25
SAMPLE_OVERCOMMIT = 1.0
# Default of BoundedAsync: one step of overlap hides all of the trainer's work; more only makes tokens older.
MAX_STALENESS = 1


class RoundPolicyName(StrEnum):
    """The rule by which rounds launch, keep and close.

    Synchronous waits for every response of every round. TailBatching launches more prompts than a short round needs, keeps the
    first to complete and leaves the rest to rare long rounds. Both train on responses of the newest weights only.
    ContinueUnfinished ends a round as TailBatching does; the rest continue in the next round from the tokens they have, under new
    weights. BoundedAsync begins rounds while earlier ones are trained. Both train on tokens of older weights too.
    """

    SYNCHRONOUS = "Synchronous"
    TAIL_BATCHING = "TailBatching"
    CONTINUE_UNFINISHED = "ContinueUnfinished"
    BOUNDED_ASYNC = "BoundedAsync"


# They train on tokens of older weights.
OFF_POLICY = (RoundPolicyName.CONTINUE_UNFINISHED, RoundPolicyName.BOUNDED_ASYNC)


class DomainQuota(ApiModel):
    """How many prompts of every round come from this domain."""

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
    steps: Annotated[int, Changeable.ANY_TIME] = Field(
        ge=1,
        le=10_000_000,
        description="Optimizer steps of the whole job. It may be raised until the job has finished; that takes effect from the next "
        "step on and stretches trainer.optimizer.schedule. To continue a job that has succeeded, create another one with "
        "checkpoint.resumeFrom.",
    )
    prompts_per_round: int = Field(
        ge=1, le=65_536, description="Prompts trained in one step; samples = this times algorithm.groupSize."
    )
    quotas: list[DomainQuota] | None = Field(
        default=None,
        min_length=1,
        max_length=64,
        description="How promptsPerRound is divided among the domains of the dataset, all of which must be listed. Holds in every "
        "round. Default: prompts as they come, whatever their domain.",
        json_schema_extra=list_map("domain"),
    )
    prompt_overcommit: float | None = Field(
        default=None,
        ge=1.0,
        le=4.0,
        description="With TailBatching and ContinueUnfinished: a short round runs this times promptsPerRound prompts. "
        f"Default: {PROMPT_OVERCOMMIT:g}.",
    )
    prompt_overcommit_mode: Annotated[
        str | None,
        Removed("leave it out, and choose promptOvercommit with `longboat simulate` on a recorded job"),
    ] = Field(default=None, max_length=64)
    sample_overcommit: float | None = Field(
        default=None,
        ge=1.0,
        le=4.0,
        description="With TailBatching: a short round launches this times algorithm.groupSize responses to a prompt and keeps the "
        "first to finish. More than 1 favours short responses within a group. "
        f"Default: {SAMPLE_OVERCOMMIT:g}.",
    )
    max_length_bias: Annotated[float | None, Changeable.WHILE_SUSPENDED] = Field(
        default=None,
        ge=0.0,
        le=1.0,
        description="With TailBatching: the largest Kolmogorov-Smirnov distance between trained response lengths and those of first "
        "launches. Once the lower 95 % bound of status.training.lengthBias exceeds it, the job stops racing for a period and "
        "reports it. With environments it limits the worse of tokens and seconds in the environment, in each domain too. Default: no limit.",
    )
    audit_every: Annotated[int | None, Changeable.WHILE_SUSPENDED] = Field(
        default=None,
        ge=2,
        le=10_000,
        description="With TailBatching: one in this many short rounds doesn't race. Its responses, none of which is cut off, show "
        "what racing does to lengths, as a check on the estimate in status.training.lengthBias. Default: none.",
    )
    max_staleness: int | None = Field(
        default=None,
        ge=1,
        le=64,
        description="With BoundedAsync: how many steps the weights that drew a token may be behind those being trained; this many "
        f"rounds start ahead. Default: {MAX_STALENESS}.",
    )
    seed: Seed = Field(
        default=0,
        description="Seed of every sample and of the minibatches; docs/reproducibility.md says what repeats bit for bit, and when.",
    )
    max_idle_steps: Annotated[int, Changeable.WHILE_SUSPENDED] = Field(
        default=10,
        ge=1,
        le=1_000_000,
        description="A step is idle if no sample in its loss has an advantage, such as when all rewards of every group are equal, unless all "
        "responses are right. The job "
        "fails, after a checkpoint and its export, after this many idle steps in a row if no step of it ever learned.",
        json_schema_extra={READER_DEFAULT: True},
    )
    stage_deadline_seconds: Annotated[Seconds, Changeable.WHILE_SUSPENDED] = Field(
        default=1800,
        ge=1,
        description="A stage (generate, reward, train, publish, checkpoint) longer than this is reported with stack traces.",
    )
