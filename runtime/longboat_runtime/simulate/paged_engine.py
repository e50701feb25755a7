"""One engine whose KV cache is of limited size: it preempts, and computes again, by the rules of vLLM's scheduler. Pure."""

from __future__ import annotations

import heapq
from collections import OrderedDict
from dataclasses import dataclass, field
from math import inf

from longboat_runtime.rollout.load import Load
from longboat_runtime.rollout.step_times import rounded
from longboat_runtime.rollout.throughput import EngineModel
from longboat_runtime.rounds.measurements import StepTimes
from longboat_runtime.samples import SampleId, VersionSpan
from longboat_runtime.simulate.engine import Response
from longboat_runtime.simulate.kv_cache import KvCache
from longboat_runtime.simulate.step_series import StepLine, StepSeries

# The most tokens that a step computes; the default is vLLM's.
BATCHED_TOKENS = 2048
# Times are sums of floats: differences up to this, in seconds, are rounding.
_ROUNDING = 1e-9


@dataclass(slots=True)
class _Sequence:
    """`drawn` of its `tokens` response tokens had been drawn at the step `since`: while it runs, the one in which it was admitted.

    It `returns` for another turn once it has them all.
    """

    sample: SampleId
    prompt_tokens: int
    tokens: int
    number: int
    versions: list[tuple[int, int]]
    returns: bool
    drawn: int = 0
    since: int = 0

    @property
    def end(self) -> int:
        """The step after which it has all its tokens."""
        return self.since + self.tokens - self.drawn

    @property
    def offset(self) -> int:
        """Tokens in the KV cache less the steps made."""
        return self.prompt_tokens + self.drawn - 1 - self.since

    def drawn_by(self, step: int) -> int:
        return self.drawn + step - self.since


@dataclass(slots=True)
class _Steps:
    """Steps without a change of sequences, under way since `start`."""

    start: float
    series: StepSeries
    count: int
    end: float = field(init=False)

    def __post_init__(self) -> None:
        self.end = self.start + self.series.seconds(self.count)


class PagedEngine:
    """An engine as `SimulatedEngine`, with the KV cache and the step times of `model`.

    What it does is what vLLM's scheduler (v1, 0.32) does with priorities by arrival, as the project runs it:

    1. A step gives each running sequence a token. Each whose blocks are full takes another one, in the order of arrival; if none is free,
       the sequence that came last is preempted: it loses its blocks and waits, before all that came later.
    2. Unless the step preempted, waiting sequences are admitted in order, at most `limit` at a time, while there are blocks for all
       tokens that the next one has; the step computes those that aren't in the prefix cache, and draws a token of it too.
    3. A step computes at most `batched_tokens` tokens. A sequence too long for what running ones leave of them is still admitted, alone.
       (vLLM computes it in chunks, or takes no request of that length.)

    A step takes `model.step_seconds` of its sequences and their tokens in context, and `model.prefill_seconds` for each token that it
    computes of those it admits. vLLM keeps one block for itself. Samples of a prompt share the full blocks of all but the last of its
    first `prompt_tokens`. What comes in the middle of a step begins with the next one; what is stopped gets the token of the step.
    """

    def __init__(
        self,
        name: str,
        limit: int,
        model: EngineModel,
        devices: int = 1,
        *,
        prompt_tokens: int = 0,
        batched_tokens: int = BATCHED_TOKENS,
    ) -> None:
        self.name = name
        self._limit, self._model, self._budget, self._size = limit, model, batched_tokens, model.block_tokens
        self._devices = devices
        self.cache = KvCache(model.kv_tokens // self._size - 1, self._size, prompt_tokens)
        self._lines: dict[int, StepLine] = {}
        self._now = 0.0
        self._step = 0
        self._paused = False
        self._version = 0
        self._outdated = False
        self._under_way: _Steps | None = None
        self._running: dict[SampleId, _Sequence] = {}
        self._waiting: OrderedDict[SampleId, _Sequence] = OrderedDict()
        self._leaving: list[SampleId] = []
        self._ends: list[tuple[int, int, SampleId]] = []
        self._residues = [0] * self._size
        self._offsets = 0
        self._arrivals = 0
        self._finished: list[Response] = []
        self._load = Load(devices)

    def submit(self, now: float, sample: SampleId, tokens: int, prompt_tokens: int, *, returns: bool = False) -> None:
        """Takes a sample that draws `tokens` after `prompt_tokens`.

        If it `returns` for another turn, it finds what is left of its blocks in the prefix cache. Raises ValueError if it has no prompt or
        the KV cache can never hold it.
        """
        self._advance(now)
        if prompt_tokens < 1:
            raise ValueError("a prompt must have at least one token")
        if self.cache.blocks(prompt_tokens + tokens - 1) > self.cache.total:
            raise ValueError(
                f"{prompt_tokens + tokens} tokens don't fit into the {self._model.kv_tokens} of {self.name}'s KV cache"
            )
        self._arrivals += 1
        waited = bool(self._waiting)
        self._waiting[sample] = _Sequence(sample, prompt_tokens, tokens, self._arrivals, [(0, self._version)], returns)
        if not waited and len(self._running) < self._limit:
            self._end_soon(now)

    def stop(self, now: float, sample: SampleId) -> Response | None:
        """Returns what there is of a sample after the step that is under way; None if it ended, ends with that step, or was stopped."""
        self._advance(now)
        if sequence := self._waiting.pop(sample, None):
            return self._response(sequence, sequence.drawn)
        if sample not in self._running or sample in self._leaving:
            return None
        sequence = self._running[sample]
        if self._under_way is None:
            self._take_out(sequence)
            return self._response(sequence, sequence.drawn_by(self._step))
        self._end_soon(now)
        last = self._step + self._under_way.count
        if sequence.end <= last:
            return None
        self._leaving.append(sample)
        return self._response(sequence, sequence.drawn_by(last))

    def next_end(self) -> float:
        """Returns when it has to be asked next, if nothing happens before: a sample ends, or others run; infinite if it does nothing."""
        if self._finished:
            return self._now
        if self._under_way is not None:
            return self._under_way.end
        return self._now if self._can_begin else inf

    def ended(self, now: float) -> list[Response]:
        """Takes out and returns the responses that have ended by now, by step, then in the order they came; begins the next step."""
        self._advance(now)
        if self._under_way is None and self._can_begin:
            self._begin()
        finished, self._finished = self._finished, []
        return finished

    def pause(self, now: float) -> None:
        """Begins no step until `serve`; one that is under way ends."""
        self._advance(now)
        self._paused = True
        self._end_soon(now)

    def serve(self, now: float, version: int) -> None:
        """Continues with these weights: keys and values of all sequences are computed again."""
        self._advance(now)
        self._paused, self._version, self._outdated = False, version, True
        if self._under_way is None:
            self._renew()

    def take_load(self, now: float) -> Load:
        """Returns what it did since the last call; time and tokens of the steps under way count when they end."""
        self._advance(now)
        taken, self._load = self._load, Load(self._devices)
        return taken

    @property
    def _can_begin(self) -> bool:
        return not self._paused and bool(self._running or self._waiting)

    def _advance(self, now: float) -> None:
        while True:
            if self._under_way is not None and self._under_way.end <= now:
                self._end()
            elif self._under_way is None and self._now < now and self._can_begin:
                self._begin()
            else:
                break
        if self._under_way is None:
            self._now = max(now, self._now)

    def _end_soon(self, now: float) -> None:
        """Makes the step that is under way the last of its series."""
        if (steps := self._under_way) is None:
            return
        passed = now - steps.start
        done = steps.series.steps(passed)
        if not done or steps.series.seconds(done) < passed - _ROUNDING:
            done += 1
        if done < steps.count:
            self._under_way = _Steps(steps.start, steps.series, done)

    def _begin(self) -> None:
        """Schedules a step, and as many as follow without a change of sequences."""
        preempted = self._grow()
        computed, full = (0, False) if preempted else self._admit()
        running = len(self._running)
        if running not in self._lines:
            self._lines[running] = StepLine.from_model(self._model, running)
        context = self._offsets / running + self._step + 1
        series = StepSeries(self._lines[running], context, self._model.prefill_seconds * computed)
        count = 1 if preempted or full else self._steps_without_change()
        self._under_way = _Steps(self._now, series, count)
        self._add_load(running=running, waiting=len(self._waiting))

    def _steps_without_change(self) -> int:
        """Counts steps from the one being scheduled on: no sequence ends before the last, and none lacks a block after the first."""
        while self._running.get(self._ends[0][2]) is None or self._running[self._ends[0][2]].end != self._ends[0][0]:
            heapq.heappop(self._ends)
        most = self._ends[0][0] - self._step
        cycles = self.cache.free // len(self._running)
        free, steps = self.cache.free - cycles * len(self._running), 1 + cycles * self._size
        while steps < most and (needed := self._needed(self._step + steps)) <= free:
            free, steps = free - needed, steps + 1
        return min(steps, most)

    def _needed(self, step: int) -> int:
        """Returns how many more blocks the running sequences need for step number `step`."""
        return self._residues[-step % self._size]

    def _grow(self) -> bool:
        """Gives running sequences the blocks that they need for a step; returns whether some had to be preempted."""
        needed = self._needed(self._step)
        if needed <= self.cache.free:
            self.cache.take(needed)
            return False
        needy = [sequence for sequence in self._running.values() if (sequence.offset + self._step) % self._size == 0]
        for sequence in needy:
            while self.cache.free == 0 and sequence.sample in self._running:
                self._preempt(self._running[next(reversed(self._running))])
            if sequence.sample not in self._running:
                break
            self.cache.take(1)
        return True

    def _preempt(self, sequence: _Sequence) -> None:
        self._take_out(sequence, continues=True)
        self._waiting[sequence.sample] = sequence
        self._waiting.move_to_end(sequence.sample, last=False)
        self._add_load(preemptions=1)

    def _admit(self) -> tuple[int, bool]:
        """Admits waiting sequences; returns the tokens to compute for them, and whether it stopped since the step computes enough."""
        budget, computed = self._budget - len(self._running), 0
        while self._waiting and len(self._running) < self._limit:
            sample, sequence = next(iter(self._waiting.items()))
            tokens = sequence.prompt_tokens + sequence.drawn
            missing = tokens - self.cache.cached_tokens(sample, tokens)
            if computed and computed + missing > budget:
                return computed, True
            if not self.cache.admit(sample, tokens):
                break
            computed += missing
            del self._waiting[sample]
            sequence.since = self._step
            self._running[sample] = sequence
            self._residues[sequence.offset % self._size] += 1
            self._offsets += sequence.offset
            heapq.heappush(self._ends, (sequence.end, sequence.number, sample))
        return computed, False

    def _end(self) -> None:
        """Ends the steps under way."""
        steps, running = self._under_way, len(self._running)
        assert steps is not None
        cycles, rest = divmod(steps.count - 1, self._size)
        self.cache.take(cycles * running + sum(self._needed(self._step + 1 + step) for step in range(rest)))
        self._step += steps.count
        self._now, self._under_way = steps.end, None
        self._add_load(
            generated_tokens=running * steps.count,
            kv_usage=1 - self.cache.free / self.cache.total,
            step_times={rounded(running): StepTimes(steps.count, steps.end - steps.start)},
        )
        while self._ends and self._ends[0][0] <= self._step:
            end, _, sample = heapq.heappop(self._ends)
            if (sequence := self._running.get(sample)) is not None and sequence.end == end:
                self._take_out(sequence, continues=sequence.returns)
                self._finished.append(self._response(sequence, sequence.tokens))
        for sample in self._leaving:
            self._take_out(self._running[sample])
        self._leaving.clear()
        if self._outdated:
            self._renew()

    def _renew(self) -> None:
        """Makes running sequences wait to be computed again, before all others; all tokens to come are of the new version."""
        self._outdated = False
        self._add_load(interrupted=len(self._running))
        for sequence in [*reversed(self._running.values())]:
            self._take_out(sequence)
            self._waiting[sequence.sample] = sequence
            self._waiting.move_to_end(sequence.sample, last=False)
        self.cache.reset()
        for sequence in self._waiting.values():
            sequence.versions.append((sequence.drawn, self._version))

    def _take_out(self, sequence: _Sequence, *, continues: bool = False) -> None:
        del self._running[sequence.sample]
        self._residues[sequence.offset % self._size] -= 1
        self._offsets -= sequence.offset
        self.cache.release(sequence.sample, sequence.offset + self._step, continues=continues)
        sequence.drawn, sequence.since = sequence.drawn_by(self._step), self._step

    def _response(self, sequence: _Sequence, tokens: int) -> Response:
        """Returns a response of the first `tokens` tokens: each version drew those from its publication to the next."""
        starts = sequence.versions
        ends = [first for first, _ in starts[1:]] + [tokens]
        spans = (VersionSpan(version, first, end) for (first, version), end in zip(starts, ends, strict=True))
        return Response(sequence.sample, tokens, tuple(span for span in spans if span.start < span.end))

    def _add_load(self, **measured: object) -> None:
        self._load += Load(self._devices, **measured)  # type: ignore[arg-type]
