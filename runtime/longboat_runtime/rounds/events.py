"""Everything that happens to samples, as numbered and serialisable events. Pure.

The ledger is a fold of these events and nothing else; the driver appends them to the event log in the order of `seq`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, Any

from pydantic import Field, TypeAdapter

from longboat_runtime.samples import FinishReason, GradeKind, PromptId, SampleId, VersionSpan


class RoundKind(StrEnum):
    """Short rounds leave long responses to long rounds."""

    SHORT = "Short"
    LONG = "Long"


class DropReason(StrEnum):
    """Why a prompt is given up for this epoch."""

    ZERO_VARIANCE = "zero_variance"
    """All rewards of the group are equal, so that it teaches nothing (DAPO, arXiv:2503.14476, section 3.2)."""
    GRADER_ERROR = "grader_error"
    """A sample could not be graded on several workers."""
    ENGINE_DEATHS = "engine_deaths"
    """A sample ran in several engines that died: made again, it would kill the next one."""
    NOT_FINITE = "not_finite"
    """The gradient of every minibatch of the prompt's step was not finite, so that nothing was trained."""


# A group dropped for one of these is not replaced: the batch trains smaller, against the same denominator.
NOT_REPLACED = (DropReason.GRADER_ERROR, DropReason.ENGINE_DEATHS)


class DeferReason(StrEnum):
    """Why a prompt goes back to the queue, to be launched again as a new attempt."""

    VERSION_GONE = "version_gone"
    """A sample was lost, and the weights that began the group no longer serve."""
    OFF_VERSION = "off_version"
    """A sample has, or would get, tokens of other weights than its round's, under a policy that allows none."""
    TOO_LONG = "too_long"
    """The round closed before the group was complete."""


@dataclass(frozen=True, slots=True)
class Started:
    """A driver started: engines of the incarnation before are gone, and nothing serves until `Published`."""

    step: int


@dataclass(frozen=True, slots=True)
class SpecChanged:
    """From this step boundary on, the fields of the job's spec that may be edited while it runs have these values.

    `steps` are the optimizer steps of the whole job.
    """

    steps: int
    checkpoint_every_steps: int
    checkpoint_keep: int


@dataclass(frozen=True, slots=True)
class Drawn:
    """Prompts were taken from the source. `position` is the number of prompts drawn before them.

    All are of `domain`; where that is empty they may be of any.
    """

    position: int
    prompts: tuple[PromptId, ...]
    domain: str = ""


@dataclass(frozen=True, slots=True)
class RoundOpened:
    """Round numbers count from 1. `version` is the weight version that serves. A `racing` round leaves its slowest prompts out."""

    round: int
    kind: RoundKind
    version: int
    racing: bool = False


@dataclass(frozen=True, slots=True)
class RacesSuspended:
    """The next `rounds` short rounds must not race: racing has biased the data by more than is allowed."""

    rounds: int


@dataclass(frozen=True, slots=True)
class OvercommitChosen:
    """Short rounds that are opened from now on launch `factor` times the prompts that they train.

    `predicted` are rollout seconds of a round by factor, as text; `reason` is for people.
    """

    factor: float
    predicted: Mapping[str, float]
    reason: str


@dataclass(frozen=True, slots=True)
class Launched:
    """A group of `samples` responses to one prompt was handed to the engines."""

    round: int
    prompt: PromptId
    attempt: int
    samples: int


@dataclass(frozen=True, slots=True)
class Generated:
    """The sample store holds this response. Its number decides whether it counts."""

    sample: SampleId
    prompt_tokens: int
    tokens: int
    finish_reason: FinishReason
    spans: tuple[VersionSpan, ...]
    engine: str


@dataclass(frozen=True, slots=True)
class Lost:
    """The engine of a running sample, or the data of a stored one, is gone.

    `engine_died` says that the sample ran in an engine that died by itself, in a pod that lives.
    """

    sample: SampleId
    reason: str
    engine_died: bool = False


@dataclass(frozen=True, slots=True)
class Relaunched:
    """A lost sample is made again, with the same seed on the same weights."""

    sample: SampleId


@dataclass(frozen=True, slots=True)
class Graded:
    """What came of grading. `score` is the sum of what the reward functions gave; a grader error has none (0.0).

    `parts` are the scores of the single reward functions, None of those that timed out: what these are worth may be known only with
    the batch (`reward.combine.batch_rewards`).
    """

    sample: SampleId
    kind: GradeKind
    score: float
    seconds: float
    message: str = ""
    parts: Mapping[str, float | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Aborted:
    """Samples beyond the group's size were stopped: they are surplus."""

    samples: tuple[SampleId, ...]


@dataclass(frozen=True, slots=True)
class Stopped:
    """An engine has given back a sample that it was told to stop, after `tokens` response tokens. They are thrown away.

    `finished` says that the response had ended by itself, at that length.
    """

    sample: SampleId
    tokens: int
    engine: str
    finished: bool = False


@dataclass(frozen=True, slots=True)
class GroupKept:
    """The group is part of its round's batch, for good."""

    prompt: PromptId
    attempt: int


@dataclass(frozen=True, slots=True)
class GroupCarried:
    """The round goes on without the group, which waits for a later one. Its unfinished samples are being paused."""

    prompt: PromptId
    attempt: int


@dataclass(frozen=True, slots=True)
class Paused:
    """An engine has given back an unfinished sample of a carried group. The store has its `tokens` response tokens, and keeps them."""

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
    """Paused samples were handed to the engines again, to go on behind the tokens that they have."""

    samples: tuple[SampleId, ...]


@dataclass(frozen=True, slots=True)
class GroupDeferred:
    """The attempt was given up; the prompt is queued for another one."""

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
    """Every group of the round is decided: the batch is what it kept."""

    round: int


@dataclass(frozen=True, slots=True)
class StepStarted:
    """The trainer computes a step from what the round kept."""

    step: int
    round: int


@dataclass(frozen=True, slots=True)
class StepFailed:
    """The trainer could not read the batch, and changed nothing. What it missed is named by `Lost` events."""

    step: int
    round: int
    reason: str


@dataclass(frozen=True, slots=True)
class StepCommitted:
    """The optimizer step on all ranks is done. `version` is the weight version it made, `samples` the batch, sorted.

    `skipped` is how many of its minibatches all ranks skipped because their gradient was not finite. If that was all of them,
    `dropped` says why the batch's prompts are given up for this epoch instead of trained; the weights of `version` are then those of
    the version before.
    """

    step: int
    version: int
    round: int
    samples: tuple[SampleId, ...]
    skipped: Annotated[int, Field(exclude_if=lambda count: not count)] = 0
    dropped: Annotated[DropReason | None, Field(exclude_if=lambda reason: reason is None)] = None


@dataclass(frozen=True, slots=True)
class PublishStarted:
    """Engines are being given the weights of `version`."""

    version: int


@dataclass(frozen=True, slots=True)
class Published:
    """Every engine that serves does so with the weights of `version`."""

    version: int


Body = (
    Started
    | SpecChanged
    | Drawn
    | RoundOpened
    | RacesSuspended
    | OvercommitChosen
    | Launched
    | Generated
    | Lost
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
    | StepStarted
    | StepFailed
    | StepCommitted
    | PublishStarted
    | Published
)

_BODIES: dict[str, TypeAdapter[Body]] = {body.__name__: TypeAdapter(body) for body in Body.__args__}


@dataclass(frozen=True, slots=True)
class Event:
    """`seq` counts from 1 without gaps over the surviving incarnations; `time` is Unix time in seconds."""

    seq: int
    incarnation: int
    time: float
    body: Body

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values, without line breaks in any key."""
        name = type(self.body).__name__
        fields = _BODIES[name].dump_python(self.body, mode="json")
        return {"seq": self.seq, "incarnation": self.incarnation, "time": self.time, "type": name, **fields}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Event:
        """Inverse of `to_json`. Raises ValueError for an unknown type or a malformed field."""
        fields = dict(value)
        try:
            header = int(fields.pop("seq")), int(fields.pop("incarnation")), float(fields.pop("time"))
            adapter = _BODIES[fields.pop("type")]
        except KeyError as error:
            raise ValueError(f"not an event: {error} is missing or unknown in {dict(value)}") from error
        return cls(*header, adapter.validate_python(fields))
