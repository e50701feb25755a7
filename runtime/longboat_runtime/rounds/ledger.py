"""The ledger: one owner of every sample's state, a fold over events. Pure.

Each event costs O(1), except events that concern many samples or prompts (O(their number)) and `Started` (O(samples in flight)). An
event that doesn't fit the state (late, duplicate, of another attempt, of an older incarnation) has no effect at all.
"""

from __future__ import annotations

from functools import singledispatchmethod

from longboat_runtime.rounds import events
from longboat_runtime.rounds.events import Event
from longboat_runtime.rounds.records import STORED, GroupRecord, RoundRecord, RoundState, SampleRecord, SampleState
from longboat_runtime.rounds.round_kind import RoundKind
from longboat_runtime.rounds.state import LedgerState
from longboat_runtime.samples import FinishReason, GradeKind, LossCause


def skipped_in_a_row(before: int, committed: events.StepCommitted) -> int:
    """Counts the steps in a row, up to this one, that trained nothing of their batch.

    A step without a batch leaves the count as it is.
    """
    if committed.dropped is not None:
        return before + 1
    return 0 if committed.samples else before


def idle_in_a_row(before: int, committed: events.StepCommitted) -> int:
    """Counts the steps in a row, up to this one, that had nothing to learn from.

    A step whose responses were all right, or whose gradient wasn't finite, leaves the count as it is.
    """
    if committed.learning is events.Learning.IDLE:
        return before + 1
    return 0 if learned(committed) else before


def learned(committed: events.StepCommitted) -> bool:
    """Whether the step's batch was trained and had something to learn from."""
    return committed.learning is events.Learning.LEARNS and committed.dropped is None


class Ledger(LedgerState):
    """The state of every sample, as the fold of all events."""

    def apply(self, event: Event) -> bool:
        """Folds `event` if it is newer and fits the state; returns whether it did."""
        starts = isinstance(event.body, events.Started)
        newer = event.incarnation > self.incarnation if starts else event.incarnation == self.incarnation
        if event.seq <= self.seq or not newer or not self._fold(event.body, event.seq):
            return False
        self.seq, self.incarnation = event.seq, event.incarnation
        return True

    @singledispatchmethod
    def _fold(self, body: events.Body, seq: int) -> bool:
        raise TypeError(f"not an event body: {body!r}")

    @_fold.register
    def _(self, body: events.Started, seq: int) -> bool:
        self.serving = self.publishing = None
        for group in self.groups.values():
            for record in group.samples:
                if record.state is SampleState.RUNNING or (record.state is SampleState.PAUSED and not record.resumable):
                    self._lose(group, record)
                elif record.state is SampleState.LOST:
                    record.begun = record.moved = ()  # the previous driver's store had them
        for round_ in self.rounds.values():
            self._lose_chunks(round_)
            round_.chunks = 0
            if round_.state is RoundState.TRAINING:
                round_.state = RoundState.CLOSED
        return True

    @_fold.register
    def _(self, body: events.SpecChanged, seq: int) -> bool:
        if body.steps < 1:
            return False
        self.steps = body.steps
        return True

    @_fold.register
    def _(self, body: events.Drawn, seq: int) -> bool:
        duplicate = any(prompt in self.queue or prompt in self.groups for prompt in body.prompts)
        if body.position != self.drawn or duplicate or len(set(body.prompts)) != len(body.prompts):
            return False
        self.drawn += len(body.prompts)
        for prompt in body.prompts:
            if body.domain:
                self.domains[prompt] = body.domain
            self.enqueue(prompt, 0)
        return True

    @_fold.register
    def _(self, body: events.RoundOpened, seq: int) -> bool:
        short = body.kind is RoundKind.SHORT
        if body.round != self.last_round + 1 or body.version != self.serving:
            return False
        if body.racing and (not short or self.calm_rounds):
            return False
        self.last_round = body.round
        self.short_rounds += short
        self.races += body.racing
        self.calm_rounds -= short and self.calm_rounds > 0
        opened = RoundRecord(body.round, body.kind, body.racing, version=body.version)
        opened.generated, opened.generated_tokens = self.between.generated, self.between.generated_tokens
        opened.lost, opened.grades = self.between.lost, self.between.grades
        opened.redrawn_tokens = self.between.redrawn_tokens
        self.rounds[body.round], self.between = opened, RoundRecord(0, RoundKind.SHORT, version=-1)
        return True

    @_fold.register
    def _(self, body: events.RacesSuspended, seq: int) -> bool:
        if body.rounds <= self.calm_rounds:
            return False
        self.calm_rounds = body.rounds
        return True

    @_fold.register
    def _(self, body: events.Launched, seq: int) -> bool:
        round_ = self.rounds.get(body.round)
        if (
            not round_
            or not round_.open
            or self.queue.get(body.prompt) != body.attempt
            or body.samples < self.group_size
        ):
            return False
        self._dequeue(body.prompt)
        samples = [SampleRecord(index) for index in range(body.samples)]
        self.groups[body.prompt] = GroupRecord(body.prompt, body.attempt, body.round, samples)
        self.counts[SampleState.RUNNING] += body.samples
        for share in self._shares(body.prompt, round_):
            share.groups[body.prompt] = None
            share.launched += 1
        return True

    @_fold.register
    def _(self, body: events.Generated, seq: int) -> bool:
        group, record = self.groups.get(body.sample.prompt), self.sample(body.sample)
        if not group or not record or record.state not in (SampleState.RUNNING, SampleState.PAUSED) or record.resumable:
            return False
        round_ = self._counters(group)
        round_.generated += 1
        round_.generated_tokens += body.tokens - record.begun_tokens
        record.seq = record.seq or seq
        record.prompt_tokens, record.tokens, record.finish_reason = body.prompt_tokens, body.tokens, body.finish_reason
        round_.redrawn_tokens += record.redrawn_tokens
        record.spans, record.engine, record.segments = body.spans, body.engine, body.segments
        record.turns, record.environment_seconds = body.turns, body.environment_seconds
        record.environment_cpu_seconds, record.requests = body.environment_cpu_seconds, body.requests
        if not record.counts:
            if group.completed is not None:
                round_.surplus += 1
                self._move(record, SampleState.SURPLUS)
                return True
            record.counts = True
            group.counted.append(record.index)
            if len(group.counted) == self.group_size:
                group.completed = seq
                if group.prompt not in self.carried:
                    for share in self._shares(group.prompt, round_):
                        share.completed[group.prompt] = None
        self._move(record, SampleState.GENERATED)
        return True

    @_fold.register
    def _(self, body: events.Graded, seq: int) -> bool:
        group, record = self.groups.get(body.sample.prompt), self.sample(body.sample)
        if not group or not record or record.state is not SampleState.GENERATED:
            return False
        round_ = self._counters(group)
        round_.grades[body.kind] = round_.grades.get(body.kind, 0) + 1
        record.kind, record.score, record.parts, record.task = body.kind, body.score, body.parts, body.task
        record.grading_seconds, record.metrics = body.seconds, body.metrics
        group.graded += 1
        error = body.kind is GradeKind.GRADER_ERROR
        group.errors += error
        if group.state is SampleState.KEPT and not error:
            round_.missing -= 1
            self._move(record, SampleState.KEPT)
        else:
            self._move(record, SampleState.REWARDED)
        return True

    @_fold.register
    def _(self, body: events.Lost, seq: int) -> bool:
        group, record = self.groups.get(body.sample.prompt), self.sample(body.sample)
        if not group or not record or record.state not in (SampleState.RUNNING, SampleState.PAUSED, *STORED):
            return False
        record.engine_deaths += body.engine_died
        record.environment_losses += body.cause is LossCause.ENVIRONMENT
        record.held_up = record.held_up or body.held_up
        self._lose(group, record, body.begun)
        return True

    @_fold.register
    def _(self, body: events.EpisodeStarted, seq: int) -> bool:
        record = self.sample(body.sample)
        if not record or record.state is not SampleState.RUNNING or record.playing:
            return False
        record.playing = True
        return True

    @_fold.register
    def _(self, body: events.Moved, seq: int) -> bool:
        record = self.sample(body.sample)
        if not record or record.state is not SampleState.RUNNING:
            return False
        record.moved = body.spans
        return True

    @_fold.register
    def _(self, body: events.Retired, seq: int) -> bool:
        return True

    @_fold.register
    def _(self, body: events.Relaunched, seq: int) -> bool:
        record = self.sample(body.sample)
        if not record or record.state is not SampleState.LOST or self.streamed(body.sample.prompt):
            return False
        del self.lost[body.sample]
        record.playing = False
        self._move(record, SampleState.RUNNING)
        return True

    @_fold.register
    def _(self, body: events.Aborted, seq: int) -> bool:
        stopped = [record for sample in body.samples if (record := self._surplus(sample))]
        if len(stopped) != len(body.samples) or not stopped:
            return False
        for sample, record in zip(body.samples, stopped, strict=True):
            self.lost.pop(sample, None)
            self._counters(self.groups[sample.prompt]).surplus += 1
            self._move(record, SampleState.SURPLUS)
        return True

    @_fold.register
    def _(self, body: events.Stopped, seq: int) -> bool:
        if not self.awaits(body.sample):
            return False
        group, record = self.groups.get(body.sample.prompt), self.sample(body.sample)
        if group and record:
            record.tokens, record.finish_reason, record.engine = body.tokens, FinishReason.ABORT, body.engine
            record.environment_seconds = body.environment_seconds
            number = group.round
        else:
            given_up = self.deferred_prompts[body.sample.prompt]
            given_up.lengths[body.sample.index] = body.tokens
            if body.environment_seconds:
                given_up.seconds = given_up.seconds or [0.0] * len(given_up.lengths)
                given_up.seconds[body.sample.index] = body.environment_seconds
            number = given_up.round
        if number in self.rounds:
            self.rounds[number].stopped_tokens += body.tokens
            self.rounds[number].redrawn_tokens += record.redrawn_tokens if record else 0
        return True

    @_fold.register
    def _(self, body: events.GroupKept, seq: int) -> bool:
        group = self.groups.get(body.prompt)
        if not group or group.attempt != body.attempt or group.state is not SampleState.RUNNING:
            return False
        if not group.rewarded or group.errors:
            return False
        if body.prompt in self.carried:
            return False
        group.state = SampleState.KEPT
        round_ = self.rounds[group.round]
        round_.waiting_tokens += group.tokens
        for share in self._shares(group.prompt, round_):
            share.kept[group.prompt] = None
        for index in group.counted:
            self._move(group.samples[index], SampleState.KEPT)
        return True

    @_fold.register
    def _(self, body: events.GroupCarried, seq: int) -> bool:
        group = self.groups.get(body.prompt)
        if not group or group.attempt != body.attempt or group.state is not SampleState.RUNNING:
            return False
        round_ = self.rounds.get(group.round)
        if not round_ or not round_.open or body.prompt in self.carried:
            return False
        for share in self._shares(body.prompt, round_):
            share.groups.pop(body.prompt, None)
            share.completed.pop(body.prompt, None)
        round_.carried += 1
        self.carried[body.prompt] = None
        for record in group.samples:
            if record.state is SampleState.RUNNING:
                record.finish_reason = None
                self._move(record, SampleState.PAUSED)
        return True

    @_fold.register
    def _(self, body: events.Paused, seq: int) -> bool:
        group, record = self.groups.get(body.sample.prompt), self.sample(body.sample)
        if not group or not record or record.state is not SampleState.PAUSED or record.resumable:
            return False
        self._counters(group).generated_tokens += body.tokens - record.begun_tokens
        record.begun, record.moved = body.spans, ()
        record.tokens, record.finish_reason, record.engine = body.tokens, FinishReason.ABORT, body.engine
        return True

    @_fold.register
    def _(self, body: events.GroupAdopted, seq: int) -> bool:
        group, round_ = self.groups.get(body.prompt), self.rounds.get(body.round)
        if not group or group.attempt != body.attempt or body.prompt not in self.carried:
            return False
        if not round_ or not round_.open:
            return False
        del self.carried[body.prompt]
        group.round = body.round
        round_.adopted += 1
        for share in self._shares(body.prompt, round_):
            share.groups[body.prompt] = None
            if group.completed is not None:
                share.completed[body.prompt] = None
        return True

    @_fold.register
    def _(self, body: events.Resumed, seq: int) -> bool:
        records = [record for sample in body.samples if (record := self.sample(sample)) and record.resumable]
        if len(records) != len(body.samples) or any(sample.prompt in self.carried for sample in body.samples):
            return False
        for record in records:
            record.finish_reason = None
            self._move(record, SampleState.RUNNING)
        return bool(records)

    @_fold.register
    def _(self, body: events.GroupDeferred, seq: int) -> bool:
        group = self._given_up(body.prompt, body.attempt)
        if not group:
            return False
        for share in self._shares(body.prompt, self._counters(group)):
            share.deferred[body.reason] = share.deferred.get(body.reason, 0) + 1
        self._requeue(group, body.reason)
        return True

    @_fold.register
    def _(self, body: events.GroupDropped, seq: int) -> bool:
        group = self._given_up(body.prompt, body.attempt)
        if not group:
            return False
        for share in self._shares(body.prompt, self._counters(group)):
            share.dropped[body.reason] = share.dropped.get(body.reason, 0) + 1
        self.domains.pop(body.prompt, None)
        self.dropped[body.reason] += 1
        return True

    @_fold.register
    def _(self, body: events.RoundClosed, seq: int) -> bool:
        round_ = self.rounds.get(body.round)
        if not round_ or not round_.open or round_.undecided:
            return False
        round_.state = RoundState.CLOSED
        return True

    @_fold.register
    def _(self, body: events.ChunkStarted, seq: int) -> bool:
        round_ = self._next_to_train(body.step)
        if not round_ or round_.number != body.round or round_.streaming or round_.state is RoundState.TRAINING:
            return False
        groups = {prompt: body.number for prompt in body.prompts if prompt in round_.kept and self.groups[prompt].whole}
        if body.number != round_.chunks + 1 or not groups or len(groups) != len(body.prompts):
            return False
        if groups.keys() & round_.streamed.keys():
            return False
        round_.streamed.update(groups)
        round_.waiting_tokens -= sum(self.groups[prompt].tokens for prompt in groups)
        round_.streaming, round_.chunks = True, body.number
        return True

    @_fold.register
    def _(self, body: events.ChunkDone, seq: int) -> bool:
        round_ = self._next_to_train(body.step)
        if not round_ or not round_.streaming or body.number != round_.chunks:
            return False
        round_.streaming = False
        return True

    @_fold.register
    def _(self, body: events.ChunksLost, seq: int) -> bool:
        round_ = self._next_to_train(body.step)
        if not round_ or not round_.streamed:
            return False
        self._lose_chunks(round_)
        return True

    @_fold.register
    def _(self, body: events.StepStarted, seq: int) -> bool:
        round_ = self.rounds.get(body.round)
        if not round_ or not round_.trainable or body.step != self.step + 1:
            return False
        round_.state = RoundState.TRAINING
        return True

    @_fold.register
    def _(self, body: events.StepFailed, seq: int) -> bool:
        round_ = self.rounds.get(body.round)
        if not round_ or round_.state is not RoundState.TRAINING or body.step != self.step + 1:
            return False
        round_.state = RoundState.CLOSED
        return True

    @_fold.register
    def _(self, body: events.StepCommitted, seq: int) -> bool:
        round_ = self.rounds.get(body.round)
        if not round_ or round_.state is not RoundState.TRAINING or body.step != self.step + 1:
            return False
        groups = [self.groups[prompt] for prompt in round_.kept]
        if sorted(sample for group in groups for sample in group.counted_ids) != list(body.samples):
            return False
        for group in groups:
            self._forget(group)
            self.domains.pop(group.prompt, None)
        del self.rounds[body.round]
        if body.dropped is not None:
            self.dropped[body.dropped] += len(groups)
        else:
            self.trained += len(groups)
        self.skipped_steps = skipped_in_a_row(self.skipped_steps, body)
        self.idle_steps = idle_in_a_row(self.idle_steps, body)
        self.learned = self.learned or learned(body)
        self.step = body.step
        return True

    @_fold.register
    def _(self, body: events.PublishStarted, seq: int) -> bool:
        if self.publishing is not None or body.version != self.step or body.version == self.serving:
            return False
        self.publishing = body.version
        return True

    @_fold.register
    def _(self, body: events.Published, seq: int) -> bool:
        if body.version != self.publishing:
            return False
        self.serving, self.publishing = body.version, None
        return True
