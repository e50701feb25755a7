"""Everything that happens to samples, as numbered and serialisable events. Pure.

The ledger is a fold of these events and nothing else; the driver appends them to the event log in the order of `seq`, and measurements
(`rounds.measurements`) between them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, Any, Generic, TypeVar

from pydantic import Field, TypeAdapter

from longboat_runtime.rounds.measurements import Measurement
from longboat_runtime.rounds.round_kind import RoundKind
from longboat_runtime.samples import (
    FinishReason,
    GradeKind,
    GradeTime,
    LossCause,
    PromptId,
    SampleId,
    SegmentSize,
    VersionSpan,
)


class DropReason(StrEnum):
    """Says why a prompt is given up for this epoch."""

    ZERO_VARIANCE = "zero_variance"
    """All rewards of the group are equal: with a baseline of its own it teaches nothing (DAPO, arXiv:2503.14476, section 3.2)."""
    GRADER_ERROR = "grader_error"
    """A sample could not be graded."""
    NOT_APPLICABLE = "not_applicable"
    """Reward functions applied to fewer than two of its samples, so there is nothing to compare."""
    ENGINE_DEATHS = "engine_deaths"
    """A sample ran in several engines that died: retried, it would kill the next one."""
    ENVIRONMENT_ERROR = "environment_error"
    """An episode was lost by its environment, or with its pod, several times."""
    NOT_FINITE = "not_finite"
    """The gradient of every minibatch of the prompt's step was not finite, so nothing was trained."""


# A group dropped for one of these reasons is not replaced: the batch is smaller, against the same denominator.
NOT_REPLACED = (
    DropReason.GRADER_ERROR,
    DropReason.ENGINE_DEATHS,
    DropReason.ENVIRONMENT_ERROR,
    DropReason.NOT_APPLICABLE,
)


class DeferReason(StrEnum):
    """Says why a prompt goes back to the queue, to be launched again as a new attempt."""

    VERSION_GONE = "version_gone"
    """A sample was lost and the weights that began the group no longer serve, or the group was begun by another job."""
    OFF_VERSION = "off_version"
    """A sample has tokens of weights other than its round's, which the policy doesn't allow."""
    TOO_LONG = "too_long"
    """The round had enough groups before this one was complete, or kept if groups of equal rewards are dropped."""
    HELD_UP = "held_up"
    """As TOO_LONG, but one of its episodes waited for a slot, or was played again since its pod or server had gone."""


@dataclass(frozen=True, slots=True)
class Started:
    """A driver started: engines of the previous incarnation are gone, and no weights serve until `Published`."""

    step: int


@dataclass(frozen=True, slots=True)
class SpecChanged:
    """The values, from this step boundary on, of the fields of the job's spec whose edits wait for one.

    `steps` is the number of optimizer steps of the whole job.
    """

    steps: int
    checkpoint_every_steps: int
    checkpoint_keep: int


@dataclass(frozen=True, slots=True)
class Drawn:
    """Prompts were drawn from the source. `position` is the number of prompts drawn before them.

    All are of `domain`; if that is empty, they may be of any domain.
    """

    position: int
    prompts: tuple[PromptId, ...]
    domain: str = ""


@dataclass(frozen=True, slots=True)
class RoundOpened:
    """A round opened. Rounds are numbered from 1. `version` is the weight version that serves.

    A `racing` round leaves out its slowest prompts.
    """

    round: int
    kind: RoundKind
    version: int
    racing: bool = False


@dataclass(frozen=True, slots=True)
class RacesSuspended:
    """The next `rounds` short rounds must not race: racing has biased the data more than allowed."""

    rounds: int


@dataclass(frozen=True, slots=True)
class Retired:
    """Stands for an event of a type in RETIRED, from the log of an earlier release. It changes nothing."""

    kind: str


@dataclass(frozen=True, slots=True)
class Launched:
    """A group of `samples` responses to one prompt was handed to the engines."""

    round: int
    prompt: PromptId
    attempt: int
    samples: int


@dataclass(frozen=True, slots=True)
class Generated:
    """The sample store holds this response. The number of this event decides whether the response counts.

    `tokens` are those that the model drew, in so many `turns`, of which it has `spans`. `segments` is empty if the only one is the prompt
    and these. `environment_seconds` are those of an episode in which it didn't wait for the model, `environment_cpu_seconds` those of its
    processes, and `requests` counts about its requests (`Episode.requests`).
    """

    sample: SampleId
    prompt_tokens: int
    tokens: int
    finish_reason: FinishReason
    spans: tuple[VersionSpan, ...]
    engine: str
    segments: Annotated[tuple[SegmentSize, ...], Field(exclude_if=lambda segments: not segments)] = ()
    turns: Annotated[int, Field(exclude_if=lambda turns: turns == 1)] = 1
    environment_seconds: Annotated[float, Field(exclude_if=lambda seconds: not seconds)] = 0.0
    environment_cpu_seconds: Annotated[float, Field(exclude_if=lambda seconds: not seconds)] = 0.0
    requests: Annotated[Mapping[str, int], Field(exclude_if=lambda counts: not counts)] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Lost:
    """Records that a running sample was lost by what made it, which is gone or gave it up, or that a stored sample's data is gone.

    `engine_died` says that the sample ran in an engine that died on its own, in a pod that stayed up. `begun` are the spans of its
    first tokens that the store still has: those that it had when it was last paused or moved. `cause` is the ENVIRONMENT if the episode
    failed, or went with its pod; `held_up` says that nothing in the episode lost it.
    """

    sample: SampleId
    reason: str
    engine_died: bool = False
    begun: Annotated[tuple[VersionSpan, ...], Field(exclude_if=lambda spans: not spans)] = ()
    cause: Annotated[LossCause, Field(exclude_if=lambda cause: cause is LossCause.ENGINE)] = LossCause.ENGINE
    held_up: Annotated[bool, Field(exclude_if=lambda held_up: not held_up)] = False


@dataclass(frozen=True, slots=True)
class EpisodeStarted:
    """An environment pod has begun the episode of a sample, which had waited for a slot for so many seconds.

    Until then the sample waits, although its group is launched. Samples without an environment have no such event.
    """

    sample: SampleId
    waited_seconds: float


@dataclass(frozen=True, slots=True)
class Moved:
    """A running sample continues in engine `target` after its first `tokens` response tokens, which `source` returned and the store has.

    A move changes nothing about what the sample is: policies aren't asked about it.
    """

    sample: SampleId
    tokens: int
    spans: tuple[VersionSpan, ...]
    source: str
    target: str


@dataclass(frozen=True, slots=True)
class Relaunched:
    """A lost sample is generated again, with the same seed, after the tokens that the store has; on-policy, on the same weights.

    An episode is played again from its start, in a new environment.
    """

    sample: SampleId


@dataclass(frozen=True, slots=True)
class Graded:
    """A sample was graded. `score` is the weighted sum of the reward functions' scores; a grader error has none (0.0).

    `seconds` is the time it took. `parts` are the scores of the single reward functions, None if one timed out: what that counts
    may be known only with the batch (`reward.combine.batch_rewards`). `times` are there for those whose timeouts are learned, `metrics`
    are what functions measured, by REWARD/KEY. `task` is the part that tells whether the row is solved.
    """

    sample: SampleId
    kind: GradeKind
    score: float
    seconds: float
    message: str = ""
    parts: Mapping[str, float | None] = field(default_factory=dict)
    times: Annotated[Mapping[str, GradeTime], Field(exclude_if=lambda times: not times)] = field(default_factory=dict)
    metrics: Annotated[Mapping[str, float], Field(exclude_if=lambda metrics: not metrics)] = field(default_factory=dict)
    task: Annotated[str | None, Field(exclude_if=lambda task: task is None)] = None


@dataclass(frozen=True, slots=True)
class Aborted:
    """Samples in excess of the group's size were stopped: they are surplus."""

    samples: tuple[SampleId, ...]


@dataclass(frozen=True, slots=True)
class Stopped:
    """An engine returned a sample that it was told to stop, after `tokens` response tokens, which are discarded.

    `finished` says that the response had ended on its own, at that length. `environment_seconds` are those of an episode so far.
    """

    sample: SampleId
    tokens: int
    engine: str
    finished: bool = False
    environment_seconds: Annotated[float, Field(exclude_if=lambda seconds: not seconds)] = 0.0


@dataclass(frozen=True, slots=True)
class GroupKept:
    """The group is part of its round's batch, unless some of its data is lost."""

    prompt: PromptId
    attempt: int


@dataclass(frozen=True, slots=True)
class GroupCarried:
    """The round continues without the group, which waits for a later round. Its unfinished samples are being paused."""

    prompt: PromptId
    attempt: int


@dataclass(frozen=True, slots=True)
class Paused:
    """An engine returned an unfinished sample of a group that was carried. The store keeps its `tokens` response tokens."""

    sample: SampleId
    tokens: int
    spans: tuple[VersionSpan, ...]
    engine: str


@dataclass(frozen=True, slots=True)
class GroupAdopted:
    """A carried group is part of this round from now on."""

    round: int
    prompt: PromptId
    attempt: int


@dataclass(frozen=True, slots=True)
class Resumed:
    """Paused samples were handed to the engines again, to continue after the tokens that they have."""

    samples: tuple[SampleId, ...]


@dataclass(frozen=True, slots=True)
class GroupDeferred:
    """The attempt was given up; the prompt is queued for another attempt."""

    prompt: PromptId
    attempt: int
    reason: DeferReason


@dataclass(frozen=True, slots=True)
class GroupDropped:
    """The prompt was given up for this epoch."""

    prompt: PromptId
    attempt: int
    reason: DropReason


@dataclass(frozen=True, slots=True)
class RoundClosed:
    """Every group of the round is decided: the kept groups are the batch."""

    round: int


@dataclass(frozen=True, slots=True)
class ChunkStarted:
    """The trainer starts to accumulate the gradient of these kept groups, before the other groups of their step.

    Chunks of a step are numbered from 1; an incarnation uses no number again after `ChunksLost`.
    """

    step: int
    round: int
    number: int
    prompts: tuple[PromptId, ...]


@dataclass(frozen=True, slots=True)
class ChunkDone:
    """All ranks have accumulated the gradient of the chunk."""

    step: int
    number: int


@dataclass(frozen=True, slots=True)
class ChunksLost:
    """The gradients of all chunks of the step are gone, that of an unfinished one included: their groups are still to be trained."""

    step: int


@dataclass(frozen=True, slots=True)
class StepStarted:
    """The trainer starts to compute a step from the groups that the round kept; those of its chunks are left out."""

    step: int
    round: int


@dataclass(frozen=True, slots=True)
class StepFailed:
    """The trainer lacked samples, or the gradients of chunks, and changed nothing. `Lost` or `ChunksLost` events say so."""

    step: int
    round: int
    reason: str


class Learning(StrEnum):
    """Says whether the samples in a step's loss had any advantage."""

    LEARNS = "learns"
    SOLVED = "solved"
    """None had, since all responses were right."""
    IDLE = "idle"
    """None had, since the rewards of each group were equal, or what differed is left out."""
    NOTHING_JUDGED = "nothing-judged"
    """There was no group with rewards: others were dropped for losses or grader errors."""


@dataclass(frozen=True, slots=True)
class StepCommitted:
    """The optimizer step is done on all ranks. `version` is the weight version it made, `samples` the batch, sorted.

    `skipped` is how many of its minibatches all ranks skipped because their gradient was not finite. If all were skipped,
    `dropped` says why the batch's prompts are given up for this epoch instead of trained. In that case, and if the batch is empty,
    `version` has the same weights as the previous version. `learning` says whether there was anything to learn from.
    """

    step: int
    version: int
    round: int
    samples: tuple[SampleId, ...]
    skipped: Annotated[int, Field(exclude_if=lambda count: not count)] = 0
    dropped: Annotated[DropReason | None, Field(exclude_if=lambda reason: reason is None)] = None
    learning: Annotated[Learning, Field(exclude_if=lambda learning: learning is Learning.LEARNS)] = Learning.LEARNS


@dataclass(frozen=True, slots=True)
class PublishStarted:
    """Engines are being given the weights of `version`."""

    version: int


@dataclass(frozen=True, slots=True)
class Published:
    """Every engine that serves has the weights of `version`."""

    version: int


Body = (
    Started
    | SpecChanged
    | Drawn
    | RoundOpened
    | RacesSuspended
    | Retired
    | Launched
    | Generated
    | Lost
    | EpisodeStarted
    | Moved
    | Relaunched
    | Graded
    | Aborted
    | Stopped
    | GroupKept
    | GroupCarried
    | Paused
    | GroupAdopted
    | Resumed
    | GroupDeferred
    | GroupDropped
    | RoundClosed
    | ChunkStarted
    | ChunkDone
    | ChunksLost
    | StepStarted
    | StepFailed
    | StepCommitted
    | PublishStarted
    | Published
)

# Events that policies aren't asked about: they change nothing about what any sample is.
OBSERVATIONS = (Retired, Moved, EpisodeStarted)

# Types of events that earlier releases wrote.
RETIRED = ("OvercommitChosen",)

_BODIES: dict[str, TypeAdapter[Body | Measurement]] = {
    body.__name__: TypeAdapter(body) for body in (*Body.__args__, *Measurement.__args__)
}


ContentT_co = TypeVar("ContentT_co", bound=Body | Measurement, covariant=True)


@dataclass(frozen=True)  # a generic alias such as `Event` can't make frozen instances with slots
class LogEntry(Generic[ContentT_co]):
    """An event or a measurement, with its place in the one order that the event log has for both.

    `seq` counts without gaps over the surviving incarnations, from 1 or on from the checkpoint of another job. `time` is Unix time in
    seconds, or that of a simulation.
    """

    seq: int
    incarnation: int
    time: float
    body: ContentT_co

    def to_json(self) -> dict[str, Any]:
        """Returns the entry as plain JSON values: its header, the type of its body, and the fields of that."""
        name = type(self.body).__name__
        fields = _BODIES[name].dump_python(self.body, mode="json")
        return {"seq": self.seq, "incarnation": self.incarnation, "time": self.time, "type": name, **fields}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Entry:
        """Reads what `to_json` returned, in this release or an earlier one: a type in RETIRED becomes `Retired`.

        Raises ValueError for an unknown type, a missing field, or a malformed one of the body.
        """
        fields = dict(value)
        try:
            header = int(fields.pop("seq")), int(fields.pop("incarnation")), float(fields.pop("time"))
            kind = fields.pop("type")
            if kind in RETIRED:
                return LogEntry(*header, Retired(kind))
            adapter = _BODIES[kind]
        except KeyError as error:
            raise ValueError(f"not an event: {error} is missing or unknown in {dict(value)}") from error
        return LogEntry(*header, adapter.validate_python(fields))


Event = LogEntry[Body]
Entry = LogEntry[Body | Measurement]
