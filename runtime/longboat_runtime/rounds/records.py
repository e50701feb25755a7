"""The ledger's records of samples, groups and rounds. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Annotated, Self

from pydantic import BeforeValidator, Field, PlainSerializer

from longboat_runtime.rounds.events import DeferReason, DropReason
from longboat_runtime.rounds.round_kind import RoundKind
from longboat_runtime.samples import (
    FinishReason,
    GradeKind,
    PromptId,
    SampleId,
    SampleSize,
    SegmentSize,
    VersionSpan,
)
from longboat_runtime.scores import all_equal

# Prompts in a fixed order; a list in JSON.
PromptSet = Annotated[
    dict[PromptId, None],
    PlainSerializer(lambda prompts: [list(prompt) for prompt in prompts]),
    BeforeValidator(lambda prompts: {PromptId(*prompt): None for prompt in prompts}),
]

# Prompts in a fixed order, with the chunk that each is part of; a list in JSON.
ChunkNumbers = Annotated[
    dict[PromptId, int],
    PlainSerializer(lambda chunks: [[*prompt, number] for prompt, number in chunks.items()]),
    BeforeValidator(lambda chunks: {PromptId(epoch, row): number for epoch, row, number in chunks}),
]


class SampleState(StrEnum):
    """The state of a sample of a live group. Samples of a queued, deferred, dropped or trained prompt have no record."""

    RUNNING = "running"
    PAUSED = "paused"
    """Unfinished, in a group that was carried: it waits with its tokens, or its engine is about to return it."""
    GENERATED = "generated"
    """The store holds it, and it counts; it isn't graded yet."""
    REWARDED = "rewarded"
    KEPT = "kept"
    SURPLUS = "surplus"
    """Beyond the first `groupSize` responses of its group, or stopped as such."""
    LOST = "lost"


# States in which the store has the sample's data.
STORED = (SampleState.GENERATED, SampleState.REWARDED, SampleState.KEPT)


class RoundState(StrEnum):
    """Open rounds launch and decide groups; closed rounds wait to be trained; rounds in training feed the current step."""

    OPEN = "open"
    CLOSED = "closed"
    TRAINING = "training"


@dataclass(slots=True)
class SampleRecord:
    """One response.

    `seq` is the number of its first `Generated` event, `counts` whether that was among the group's first `groupSize`; the grade fields are
    set while it has a grade; `task` is the part that tells whether its row is solved. `begun` are the spans of the tokens that the store
    keeps of an unfinished sample, which continues after them; `moved` are those that it had when it last moved to another engine, or that
    were left when it was lost. `engine_deaths` is the number of engines that died on their own while generating it. `kept_tokens` is the
    smallest number of tokens that the store had of it when it was lost, None if it never was: those behind them are drawn again.
    `segments` is empty if the only one is the prompt and its `tokens`. Of an episode, `playing` says that a pod has begun its launch, so
    that it waits for no slot. `environment_losses` counts how often its environment or pod lost it; `held_up` says that one of these losses had
    nothing to do with the episode.
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
    task: Annotated[str | None, Field(exclude_if=lambda task: task is None)] = None
    grading_seconds: float = 0.0
    metrics: Annotated[Mapping[str, float], Field(exclude_if=lambda metrics: not metrics)] = field(default_factory=dict)
    begun: tuple[VersionSpan, ...] = ()
    moved: tuple[VersionSpan, ...] = ()
    engine_deaths: int = 0
    kept_tokens: int | None = None
    segments: Annotated[tuple[SegmentSize, ...], Field(exclude_if=lambda segments: not segments)] = ()
    turns: Annotated[int, Field(exclude_if=lambda turns: turns == 1)] = 1
    environment_seconds: Annotated[float, Field(exclude_if=lambda seconds: not seconds)] = 0.0
    environment_cpu_seconds: Annotated[float, Field(exclude_if=lambda seconds: not seconds)] = 0.0
    requests: Annotated[Mapping[str, int], Field(exclude_if=lambda counts: not counts)] = field(default_factory=dict)
    playing: Annotated[bool, Field(exclude_if=lambda playing: not playing)] = False
    environment_losses: Annotated[int, Field(exclude_if=lambda losses: not losses)] = 0
    held_up: Annotated[bool, Field(exclude_if=lambda held_up: not held_up)] = False

    @property
    def size(self) -> SampleSize:
        segments = self.segments or (SegmentSize(self.prompt_tokens + self.tokens, self.tokens),)
        return SampleSize(segments, self.finish_reason is FinishReason.LENGTH)

    @property
    def resumable(self) -> bool:
        """Whether it is paused and no engine has it any more."""
        return self.state is SampleState.PAUSED and self.finish_reason is not None

    @property
    def begun_tokens(self) -> int:
        return self.begun[-1].end if self.begun else 0

    @property
    def redrawn_tokens(self) -> int:
        """The number of its tokens behind those that the store still had when it was lost; 0 if it never was."""
        return 0 if self.kept_tokens is None else max(0, self.tokens - self.kept_tokens)

    @property
    def stored(self) -> tuple[VersionSpan, ...]:
        """The spans of the tokens after which it can continue: the store has them."""
        return self.moved or self.begun

    @property
    def timed_out(self) -> frozenset[str]:
        """The reward functions that timed out on it."""
        return frozenset(name for name, score in self.parts.items() if score is None)


def equal_scores(samples: Sequence[SampleRecord]) -> bool:
    """Whether the samples' task rewards gave equal scores or all timed out; False without samples.

    If a sample has no task reward, the weighted sums have to be equal. Of timeouts their scores are known only with the batch: those of the
    same functions are equal.
    """
    by_task = [sample.parts[sample.task] for sample in samples if sample.task is not None]
    if len(by_task) < len(samples):
        return len({sample.timed_out for sample in samples}) == 1 and all_equal([sample.score for sample in samples])
    scores = [score for score in by_task if score is not None]
    return len(scores) in (0, len(samples)) and all_equal(scores or [0.0]) and bool(samples)


@dataclass(slots=True)
class GroupRecord:
    """One attempt at one prompt. `state` is RUNNING until it is decided, then KEPT. `round` is its current or last round.

    `counted` are the indices of the first `groupSize` samples in the order of their `Generated` events: they count, whatever
    happens later. `completed` is the number of the event that completed the group. `graded` counts its grades, `errors` those that
    are grader errors.
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

    def siblings(self, group_size: int) -> list[SampleId]:
        """Returns the ids of the samples that count once all `group_size` are in the store, else none."""
        whole = len(self.counted) == group_size and all(self.samples[index].state in STORED for index in self.counted)
        return self.counted_ids if whole else []

    @property
    def sample_ids(self) -> list[SampleId]:
        return [self.sample_id(sample.index) for sample in self.samples]

    @property
    def running(self) -> tuple[SampleId, ...]:
        """The samples that engines are generating."""
        return tuple(self.sample_id(sample.index) for sample in self.samples if sample.state is SampleState.RUNNING)

    @property
    def given_up(self) -> GivenUp:
        """The record that remains once the attempt is given up."""
        lengths = [sample.tokens if sample.finish_reason is not None else None for sample in self.samples]
        seconds = [sample.environment_seconds for sample in self.samples]
        return GivenUp(self.prompt, self.attempt, self.round, lengths, seconds if any(seconds) else [])

    @property
    def tokens(self) -> int:
        """The tokens that training on the samples that count computes, those of the prompt included."""
        return sum(self.samples[index].size.computed for index in self.counted)

    @property
    def timed_out(self) -> frozenset[str]:
        """The reward functions that timed out on a sample that counts."""
        return frozenset[str]().union(*(self.samples[index].timed_out for index in self.counted))

    @property
    def held_up(self) -> bool:
        """Whether one of its episodes waits for a slot, or is being played again for a reason that has nothing to do with it."""
        return any(
            sample.held_up or not sample.playing or sample.state is SampleState.LOST
            for sample in self.samples
            if sample.state in (SampleState.RUNNING, SampleState.LOST) and sample.seq is None
        )

    @property
    def whole(self) -> bool:
        """Whether it is kept and no data or grade of it is missing."""
        states = {self.state, *(self.samples[index].state for index in self.counted)}
        return states == {SampleState.KEPT}

    @property
    def rewarded(self) -> bool:
        """Whether it is complete and every sample that counts has a grade."""
        return self.completed is not None and self.graded == len(self.counted)

    @property
    def scored(self) -> list[SampleRecord]:
        """The samples that count and to which a reward function applies."""
        counted = (self.samples[index] for index in self.counted)
        return [sample for sample in counted if sample.kind is not GradeKind.NOT_APPLICABLE]

    @property
    def incomparable(self) -> bool:
        """Whether reward functions apply to fewer than two of several samples."""
        return len(self.scored) < min(2, len(self.counted))

    @property
    def zero_variance(self) -> bool:
        """Whether the samples to which a reward function applies are worth the same (`equal_scores`)."""
        return equal_scores(self.scored)


@dataclass(slots=True)
class GivenUp:
    """The last attempt at a deferred prompt, made in `round`.

    `lengths` are the response tokens of its samples, by index: the full length if finished, the length so far if stopped; None
    until the engine has reported it. `seconds` are those of its episodes in their environments, by index, so far if stopped; it is empty
    if none is known. Those of a prompt that was `held_up` say nothing about the next attempt.
    """

    prompt: PromptId
    attempt: int
    round: int
    lengths: list[int | None]
    seconds: Annotated[list[float], Field(exclude_if=lambda seconds: not seconds)] = field(default_factory=list)
    held_up: Annotated[bool, Field(exclude_if=lambda held_up: not held_up)] = False

    def awaits(self, index: int) -> bool:
        """Whether the length of this sample isn't known; its engine may still report it."""
        return 0 <= index < len(self.lengths) and self.lengths[index] is None

    @property
    def longest(self) -> int:
        """The longest response seen, in tokens: an estimate of the longest of the next attempt."""
        return max((length for length in self.lengths if length is not None), default=0)

    @property
    def slowest(self) -> float:
        """The longest time that an episode spent in its environment, in seconds: an estimate of that of the next attempt."""
        return 0.0 if self.held_up else max(self.seconds, default=0.0)


@dataclass(slots=True)
class Waiting:
    """The part of `LedgerState.queue` and `LedgerState.deferred_prompts` that belongs to one domain."""

    queue: dict[PromptId, int] = field(default_factory=dict)
    deferred: dict[PromptId, GivenUp] = field(default_factory=dict)


@dataclass(slots=True)
class PartRecord:
    """The state of a round's prompts, or of the prompts of one domain in it.

    A `racing` round leaves out its slowest prompts. `groups` are the undecided and kept groups, `completed` the complete ones in
    the order of completion or, if that came later, adoption. The counters cover the whole round, decided groups included: `dropped` and
    `deferred` by reason.
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
        """Returns a copy of the record in which its kept groups count as dropped for `reason`."""
        dropped = self.dropped | {reason: self.dropped.get(reason, 0) + len(self.kept)}
        return replace(self, kept={}, dropped=dropped)


@dataclass(slots=True)
class RoundRecord(PartRecord):
    """One round. `parts` holds the state of prompts that have a domain, by domain.

    `missing` counts samples of kept groups whose data or grade is gone: the round can't be trained before they are restored.
    `streamed` are the kept groups whose gradient the trainer has accumulated or is accumulating (`streaming`): what is lost of them
    isn't missed. `chunks` is the number of the newest chunk. Kept groups that aren't streamed have about `waiting_tokens`: one that was
    drawn again on another device may have become longer.
    The counters cover the whole round, decided groups included: `grades` by kind; `generated_tokens` are the response tokens
    generated in the round except those of stopped samples, which are `stopped_tokens`; `redrawn_tokens` are those of both that had
    to be drawn again; `carried` counts groups left to a later
    round, `adopted` groups taken over from an earlier one.
    """

    version: int = field(kw_only=True)
    state: RoundState = RoundState.OPEN
    parts: dict[str, PartRecord] = field(default_factory=dict)
    missing: int = 0
    streamed: Annotated[ChunkNumbers, Field(exclude_if=lambda chunks: not chunks)] = field(default_factory=dict)
    streaming: Annotated[bool, Field(exclude_if=lambda streaming: not streaming)] = False
    chunks: Annotated[int, Field(exclude_if=lambda number: not number)] = 0
    waiting_tokens: int = 0
    adopted: int = 0
    carried: int = 0
    generated: int = 0
    surplus: int = 0
    lost: int = 0
    generated_tokens: int = 0
    stopped_tokens: int = 0
    redrawn_tokens: int = 0
    grades: dict[GradeKind, int] = field(default_factory=dict)

    def without_batch(self, reason: DropReason) -> Self:
        """Returns a copy of the record in which its kept groups count as dropped for `reason`, in every domain too."""
        parts = {domain: part.without_batch(reason) for domain, part in self.parts.items()}
        return replace(PartRecord.without_batch(self, reason), parts=parts)

    def part(self, domain: str) -> PartRecord:
        """Returns the state of the prompts of a domain; a new one, not yet in `parts`, if there is none."""
        return self.parts.get(domain) or PartRecord(self.number, self.kind, self.racing)

    @property
    def open(self) -> bool:
        return self.state is RoundState.OPEN

    @property
    def accumulated(self) -> int:
        """The chunks whose gradient the trainer holds, the one that it is accumulating included."""
        return len(set(self.streamed.values()))

    @property
    def trainable(self) -> bool:
        return self.state is RoundState.CLOSED and not self.missing and not self.streaming
