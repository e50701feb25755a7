"""The state of a ledger, and the changes that several events share. Pure."""

from __future__ import annotations

from collections import Counter

from longboat_runtime.rounds.events import DeferReason, DropReason
from longboat_runtime.rounds.records import (
    GivenUp,
    GroupRecord,
    PartRecord,
    RoundRecord,
    RoundState,
    SampleRecord,
    SampleState,
    Waiting,
)
from longboat_runtime.rounds.round_kind import RoundKind
from longboat_runtime.samples import GradeKind, PromptId, SampleId, VersionSpan


class LedgerState:
    """Read through `view.View`; changed only by `Ledger.apply` once it has been restored.

    `steps` is the number of optimizer steps of the whole job, `step` how many of them are committed.
    `queue` maps prompts that wait for a launch to the number of their next attempt, oldest first; `deferred_prompts` maps the
    prompts among them that have been launched before to the attempt that was given up. `domains` has the domain of each queued
    prompt and live group that was drawn from one; `waiting` is the queue by domain. `short_rounds` counts the short rounds opened
    so far, `races` those that raced, `calm_rounds` future short rounds that must not race. `lost` are the samples of live groups that are
    LOST. `carried` are groups that wait for a round, oldest first; `between` counts what happens to them after the
    round they were in is trained, and is added to the next round. `counts` counts samples of live groups by state. `skipped_steps`
    counts the last steps in a row whose batch was dropped since none of it could be trained, `idle_steps` those that had nothing to learn
    from; `learned` says whether any step of the job had.
    """

    def __init__(self, group_size: int, steps: int = 0) -> None:
        self.group_size = group_size
        self.steps = steps
        self.seq = 0
        self.incarnation = 0
        self.step = 0
        self.serving: int | None = None
        self.publishing: int | None = None
        self.last_round = 0
        self.short_rounds = 0
        self.races = 0
        self.calm_rounds = 0
        self.drawn = 0
        self.trained = 0
        self.skipped_steps = 0
        self.idle_steps = 0
        self.learned = False
        self.dropped: Counter[DropReason] = Counter()
        self.deferred: Counter[DeferReason] = Counter()
        self.queue: dict[PromptId, int] = {}
        self.deferred_prompts: dict[PromptId, GivenUp] = {}
        self.domains: dict[PromptId, str] = {}
        self.waiting: dict[str, Waiting] = {}
        self.groups: dict[PromptId, GroupRecord] = {}
        self.rounds: dict[int, RoundRecord] = {}
        self.lost: dict[SampleId, None] = {}
        self.carried: dict[PromptId, None] = {}
        self.between = RoundRecord(0, RoundKind.SHORT, version=-1)
        self.counts: Counter[SampleState] = Counter()

    def sample(self, sample: SampleId) -> SampleRecord | None:
        """Returns the record of the sample; None if its group isn't live, or has another attempt or no sample of that index."""
        group = self.groups.get(sample.prompt)
        if group is None or group.attempt != sample.attempt or not 0 <= sample.index < len(group.samples):
            return None
        return group.samples[sample.index]

    def streamed(self, prompt: PromptId) -> bool:
        """Whether the prompt's group is part of a chunk: its gradient is accumulated, or being accumulated."""
        group = self.groups.get(prompt)
        return group is not None and prompt in self._counters(group).streamed

    def awaits(self, sample: SampleId) -> bool:
        """Whether this sample was stopped or given up and its length isn't known; an engine may still return it."""
        if record := self.sample(sample):
            return record.state is SampleState.SURPLUS and record.finish_reason is None
        given_up = self.deferred_prompts.get(sample.prompt)
        return given_up is not None and given_up.attempt == sample.attempt and given_up.awaits(sample.index)

    def _move(self, record: SampleRecord, state: SampleState) -> None:
        self.counts[record.state] -= 1
        self.counts[state] += 1
        record.state = state

    def enqueue(self, prompt: PromptId, attempt: int, given_up: GivenUp | None = None) -> None:
        """Queues the prompt for a launch as this attempt; `given_up` is the previous attempt."""
        self.queue[prompt] = attempt
        if given_up:
            self.deferred_prompts[prompt] = given_up
        if (domain := self.domains.get(prompt)) is not None:
            waiting = self.waiting.setdefault(domain, Waiting())
            waiting.queue[prompt] = attempt
            if given_up:
                waiting.deferred[prompt] = given_up

    def _requeue(self, group: GroupRecord, reason: DeferReason) -> None:
        """Queues the prompt of a removed group for its next attempt."""
        self.deferred[reason] += 1
        given_up = group.given_up
        given_up.held_up = reason is DeferReason.HELD_UP
        self.enqueue(group.prompt, group.attempt + 1, given_up)

    def _dequeue(self, prompt: PromptId) -> None:
        del self.queue[prompt]
        self.deferred_prompts.pop(prompt, None)
        if (domain := self.domains.get(prompt)) is not None:
            waiting = self.waiting[domain]
            del waiting.queue[prompt]
            waiting.deferred.pop(prompt, None)

    def _shares(self, prompt: PromptId, round_: RoundRecord) -> tuple[PartRecord, ...]:
        """Returns the records that account for a prompt's group: `round_` and, if it has a domain, that part of it, made if missing."""
        domain = self.domains.get(prompt)
        if domain is None:
            return (round_,)
        part = round_.parts[domain] = round_.part(domain)
        return round_, part

    def _counters(self, group: GroupRecord) -> RoundRecord:
        """Returns the record that counts what happens to a group: that of its round, or `between` once that is trained."""
        return self.rounds.get(group.round, self.between)

    def _lose(self, group: GroupRecord, record: SampleRecord, begun: tuple[VersionSpan, ...] = ()) -> None:
        """Marks the sample as lost; of its tokens, the store still has those with spans `begun`.

        Its grade is forgotten, unless the group is streamed: then it still counts for the step.
        """
        round_ = self._counters(group)
        if group.prompt not in round_.streamed:
            self._forget_grade(group, record)
            round_.missing += record.state is SampleState.KEPT
        if record.state is SampleState.PAUSED:
            record.finish_reason = None
        record.begun, record.moved = (record.begun, begun) if begun else ((), ())
        kept_tokens = begun[-1].end if begun else 0
        record.kept_tokens = kept_tokens if record.kept_tokens is None else min(kept_tokens, record.kept_tokens)
        round_.lost += 1
        self.lost[group.sample_id(record.index)] = None
        self._move(record, SampleState.LOST)

    @staticmethod
    def _forget_grade(group: GroupRecord, record: SampleRecord) -> None:
        if record.kind is not None:
            group.graded -= 1
            group.errors -= record.kind is GradeKind.GRADER_ERROR
            record.kind, record.score, record.parts, record.grading_seconds, record.metrics = None, 0.0, {}, 0.0, {}

    def _next_to_train(self, step: int) -> RoundRecord | None:
        """Returns the oldest round if `step` is the next one, which it feeds; else None."""
        return next(iter(self.rounds.values()), None) if step == self.step + 1 else None

    def _lose_chunks(self, round_: RoundRecord) -> None:
        """Makes the round's streamed groups kept ones like all others, which miss what was lost of them meanwhile."""
        for group in map(self.groups.__getitem__, round_.streamed):
            round_.waiting_tokens += group.tokens
            for record in group.samples:
                if record.state is SampleState.LOST:
                    self._forget_grade(group, record)
                    round_.missing += record.counts
        round_.streamed, round_.streaming = {}, False

    def _surplus(self, sample: SampleId) -> SampleRecord | None:
        """Returns the sample's record if it runs or is lost, and its group is complete without it, so that it may be stopped; else None."""
        group, record = self.groups.get(sample.prompt), self.sample(sample)
        stoppable = group and record and group.completed is not None and not record.counts
        return record if stoppable and record and record.state in (SampleState.RUNNING, SampleState.LOST) else None

    def _given_up(self, prompt: PromptId, attempt: int) -> GroupRecord | None:
        """Removes and returns the group if it is undecided, or kept with a grade missing or in error, and not being trained; else None."""
        group = self.groups.get(prompt)
        if (
            not group
            or group.attempt != attempt
            or (group.state is SampleState.KEPT and group.rewarded and not group.errors)
        ):
            return None
        round_ = self._counters(group)
        if round_.state is RoundState.TRAINING and prompt not in self.carried:
            return None
        if group.state is SampleState.KEPT:
            round_.missing -= sum(group.samples[index].state is not SampleState.KEPT for index in group.counted)
            round_.waiting_tokens -= group.tokens
        for share in self._shares(prompt, round_):
            for index in (share.groups, share.completed, share.kept):
                index.pop(prompt, None)
        self._forget(group)
        return group

    def start_over(self) -> None:
        """Prepares the state for another job: unfinished groups are queued first for another attempt, all else is reset."""
        unfinished = [*self.groups.values()]
        waiting = [(prompt, attempt, self.deferred_prompts.get(prompt)) for prompt, attempt in self.queue.items()]
        for prompt, _, _ in waiting:
            self._dequeue(prompt)
        for group in unfinished:
            self._forget(group)
            self._requeue(group, DeferReason.VERSION_GONE)
        for prompt, attempt, given_up in waiting:
            self.enqueue(prompt, attempt, given_up)
        self.rounds.clear()
        self.skipped_steps = self.idle_steps = 0
        self.learned = False
        self.between = RoundRecord(0, RoundKind.SHORT, version=-1)

    def _forget(self, group: GroupRecord) -> None:
        del self.groups[group.prompt]
        self.carried.pop(group.prompt, None)
        for record in group.samples:
            self.counts[record.state] -= 1
            if record.state is SampleState.LOST:
                self.lost.pop(group.sample_id(record.index), None)
