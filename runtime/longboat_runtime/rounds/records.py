"""What the ledger remembers of a sample, a group and a round. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Annotated, Self

from pydantic import BeforeValidator, PlainSerializer

from longboat_runtime.rounds.events import DeferReason, DropReason, RoundKind
from longboat_runtime.samples import FinishReason, GradeKind, PromptId, SampleId, VersionSpan

# Prompts in a fixed order; a list in JSON.
PromptSet = Annotated[
    dict[PromptId, None],
    PlainSerializer(lambda prompts: [list(prompt) for prompt in prompts]),
    BeforeValidator(lambda prompts: {PromptId(*prompt): None for prompt in prompts}),
]


class SampleState(StrEnum):
    """Where a sample of a live group is. Samples of a queued, deferred, dropped or trained prompt have no record any more."""

    RUNNING = "running"
    PAUSED = "paused"
    """Unfinished, of a carried group: it waits with its tokens, or is on its way out of its engine."""
    GENERATED = "generated"
    """The store holds it and it counts; not graded yet."""
    REWARDED = "rewarded"
    KEPT = "kept"
    SURPLUS = "surplus"
    """Beyond the first `groupSize` responses of its group, or stopped as such."""
    LOST = "lost"


class RoundState(StrEnum):
    """Open rounds launch and decide; closed ones wait to be trained, or are."""

    OPEN = "open"
    CLOSED = "closed"
    TRAINING = "training"


@dataclass(slots=True)
class SampleRecord:
    """One response.

    `seq` is the number of its first `generated` event, `counts` whether that was among the group's first `groupSize`; grade
    fields are set while it is graded. `begun` are the spans of the tokens that the store keeps of an unfinished sample: it
    goes on behind them. `engine_deaths` are the engines that died while they made it.
    """

    index: int
    state: SampleState = SampleState.RUNNING
    seq: int | None = None
    counts: bool = False
    prompt_tokens: int = 0
    tokens: int = 0
    finish_reason: FinishReason | None = None
    spans: tuple[VersionSpan, ...] = ()
    engine: str = ""
    kind: GradeKind | None = None
    score: float = 0.0
    parts: Mapping[str, float | None] = field(default_factory=dict)
    grading_seconds: float = 0.0
    begun: tuple[VersionSpan, ...] = ()
    engine_deaths: int = 0

    @property
    def resumable(self) -> bool:
        """It is paused, and no engine has it any more."""
        return self.state is SampleState.PAUSED and self.finish_reason is not None

    @property
    def begun_tokens(self) -> int:
        return self.begun[-1].end if self.begun else 0

    @property
    def timed_out(self) -> frozenset[str]:
        """The reward functions that timed out on it."""
        return frozenset(name for name, score in self.parts.items() if score is None)


@dataclass(slots=True)
class GroupRecord:
    """One attempt at one prompt. `state` is RUNNING until it is decided, then KEPT. `round` is the one that it is in, or was last.

    `counted` are the indices of the first `groupSize` samples in the order of their `generated` events: they count, whatever
    happens later. `completed` is the number of the event that filled it. `graded` and `errors` count its grades.
    """

    prompt: PromptId
    attempt: int
    round: int
    samples: list[SampleRecord]
    state: SampleState = SampleState.RUNNING
    counted: list[int] = field(default_factory=list)
    completed: int | None = None
    graded: int = 0
    errors: int = 0

    def sample_id(self, index: int) -> SampleId:
        return SampleId(self.prompt.epoch, self.prompt.row, self.attempt, index)

    @property
    def counted_ids(self) -> list[SampleId]:
        return [self.sample_id(index) for index in self.counted]

    @property
    def sample_ids(self) -> list[SampleId]:
        return [self.sample_id(sample.index) for sample in self.samples]

    @property
    def running(self) -> tuple[SampleId, ...]:
        """What engines make of it."""
        return tuple(self.sample_id(sample.index) for sample in self.samples if sample.state is SampleState.RUNNING)

    @property
    def given_up(self) -> GivenUp:
        """What is kept of it once it is given up."""
        lengths = [sample.tokens if sample.finish_reason is not None else None for sample in self.samples]
        return GivenUp(self.prompt, self.attempt, self.round, lengths)

    @property
    def rewarded(self) -> bool:
        """Every sample that counts has its grade."""
        return self.completed is not None and self.graded == len(self.counted)

    @property
    def zero_variance(self) -> bool:
        """All rewards are equal. What a timeout is worth is known only with the batch: it equals timeouts of the same functions."""
        counted = [self.samples[index] for index in self.counted]
        return len({(sample.score, sample.timed_out) for sample in counted}) == 1


@dataclass(slots=True)
class GivenUp:
    """The last attempt at a deferred prompt, in `round`.

    `lengths` are the response tokens of its samples, by index: of finished ones, and of stopped ones as far as they got; None
    while the engine hasn't said.
    """

    prompt: PromptId
    attempt: int
    round: int
    lengths: list[int | None]

    def awaits(self, index: int) -> bool:
        """The engine hasn't said yet how far this sample got."""
        return 0 <= index < len(self.lengths) and self.lengths[index] is None

    @property
    def longest(self) -> int:
        """The longest response seen: a lower bound of what the next attempt may take."""
        return max((length for length in self.lengths if length is not None), default=0)


@dataclass(slots=True)
class Waiting:
    """What `LedgerState.queue` and `LedgerState.deferred_prompts` have of one domain."""

    queue: dict[PromptId, int] = field(default_factory=dict)
    deferred: dict[PromptId, GivenUp] = field(default_factory=dict)


@dataclass(slots=True)
class PartRecord:
    """What became of the prompts of a round, or of those of one domain in it.

    A `racing` round leaves its slowest prompts out. `groups` are the undecided and kept groups; `completed` groups in the order
    they were filled. The counters are over the whole round, decided groups included: `dropped` and `deferred` by reason.
    """

    number: int
    kind: RoundKind
    racing: bool = False
    groups: PromptSet = field(default_factory=dict)
    completed: PromptSet = field(default_factory=dict)
    kept: PromptSet = field(default_factory=dict)
    launched: int = 0
    dropped: dict[DropReason, int] = field(default_factory=dict)
    deferred: dict[DeferReason, int] = field(default_factory=dict)

    @property
    def undecided(self) -> int:
        return len(self.groups) - len(self.kept)

    def without_batch(self, reason: DropReason) -> Self:
        """The same once the batch is dropped."""
        dropped = self.dropped | {reason: self.dropped.get(reason, 0) + len(self.kept)}
        return replace(self, kept={}, dropped=dropped)


@dataclass(slots=True)
class RoundRecord(PartRecord):
    """One round. `parts` has what became of prompts that have a domain, by domain.

    `missing` counts samples of kept groups whose data or grade is gone: it can't be trained before they are made again.
    The counters are over the whole round, decided groups included: `grades` by kind; `generated_tokens` are response tokens
    that were made in the round, those of stopped samples apart, `stopped_tokens` theirs; `carried` are groups that the round
    left to a later one, `adopted` those that one before had left to it.
    """

    version: int = field(kw_only=True)
    state: RoundState = RoundState.OPEN
    parts: dict[str, PartRecord] = field(default_factory=dict)
    missing: int = 0
    adopted: int = 0
    carried: int = 0
    generated: int = 0
    surplus: int = 0
    lost: int = 0
    generated_tokens: int = 0
    stopped_tokens: int = 0
    grades: dict[GradeKind, int] = field(default_factory=dict)

    def without_batch(self, reason: DropReason) -> Self:
        """The same once the batch is dropped, in every domain."""
        parts = {domain: part.without_batch(reason) for domain, part in self.parts.items()}
        return replace(PartRecord.without_batch(self, reason), parts=parts)

    def part(self, domain: str) -> PartRecord:
        """What became of the prompts of a domain."""
        return self.parts.get(domain) or PartRecord(self.number, self.kind, self.racing)

    @property
    def open(self) -> bool:
        return self.state is RoundState.OPEN

    @property
    def trainable(self) -> bool:
        return self.state is RoundState.CLOSED and not self.missing
