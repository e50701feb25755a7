"""One engine: every step gives each running sequence a token. Pure."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from math import floor, inf

from longboat_runtime.samples import SampleId, VersionSpan
from longboat_runtime.simulate.curve import StepCurve

# Steps are counted in floats: differences up to this are rounding.
_ROUNDING = 1e-6


@dataclass(frozen=True, slots=True)
class Response:
    """Holds what an engine gives back: `tokens` with the weight versions that drew them."""

    sample: SampleId
    tokens: int
    spans: tuple[VersionSpan, ...]


@dataclass(frozen=True, slots=True)
class _Running:
    start: float
    prompt_tokens: int


class SimulatedEngine:
    """Runs at most `limit` sequences; others wait in the order they came. The caller gives the time, which never goes back.

    A sample begins at once, not with the next step: on average that is half a step too early. Prompts cost no time of their own;
    the curve has it, as far as the steps it was observed on computed prompts too.
    """

    def __init__(self, name: str, limit: int, curve: StepCurve) -> None:
        self.name = name
        self._limit = limit
        self._seconds = cache(curve)
        self._now = 0.0
        self._steps = 0.0
        self._paused = False
        self._running: dict[SampleId, _Running] = {}
        self._ends: list[tuple[float, int, SampleId]] = []
        self._waiting: dict[SampleId, tuple[int, int]] = {}
        self._count = 0
        self._versions = [(0.0, 0)]
        self._start_sum = 0.0
        self.tokens_most = 0.0

    def submit(self, now: float, sample: SampleId, tokens: int, prompt_tokens: int, *, returns: bool = False) -> None:
        """Takes a sample that draws `tokens` after `prompt_tokens`. It makes no difference whether it `returns` for another turn."""
        del returns
        self._advance(now)
        self._waiting[sample] = (tokens, prompt_tokens)
        self._admit()

    def stop(self, now: float, sample: SampleId) -> Response | None:
        """Takes out a sample and returns what there is of it so far; None if the engine doesn't have it."""
        self._advance(now)
        if self._waiting.pop(sample, None) is not None:
            return Response(sample, 0, ())
        if sample not in self._running:
            return None
        response = self._take_out(sample, floor(self._steps - self._running[sample].start + _ROUNDING))
        self._admit()
        return response

    def next_end(self) -> float:
        """Returns when the next sample will have ended, if nothing happens before; infinite if none runs, or while the engine is paused."""
        while self._ends and self._ends[0][2] not in self._running:
            heapq.heappop(self._ends)
        if not self._ends or self._paused:
            return inf
        return self._now + max(0.0, self._ends[0][0] - self._steps) * self._seconds(len(self._running))

    def ended(self, now: float) -> list[Response]:
        """Takes out and returns the responses that have ended by now, by the step of their last token, then in the order they came."""
        self._advance(now)
        responses = []
        while self._ends and self._ends[0][0] <= self._steps + _ROUNDING:
            end, _, sample = heapq.heappop(self._ends)
            if sample in self._running:
                responses.append(self._take_out(sample, round(end - self._running[sample].start)))
        self._admit()
        return responses

    def pause(self, now: float) -> None:
        """Stops drawing until `serve`."""
        self._advance(now)
        self._paused = True

    def serve(self, now: float, version: int) -> None:
        """Continues with these weights."""
        self._advance(now)
        self._paused = False
        self._versions.append((self._steps, version))

    def _advance(self, now: float) -> None:
        batch = len(self._running)
        if batch and not self._paused:
            self._steps += (now - self._now) / self._seconds(batch)
        self._now = now
        self.tokens_most = max(self.tokens_most, self._start_sum + batch * self._steps)

    def _admit(self) -> None:
        while self._waiting and len(self._running) < self._limit:
            sample = next(iter(self._waiting))
            tokens, prompt_tokens = self._waiting.pop(sample)
            self._running[sample] = _Running(self._steps, prompt_tokens)
            self._start_sum += prompt_tokens - self._steps
            self._count += 1
            heapq.heappush(self._ends, (self._steps + tokens, self._count, sample))

    def _take_out(self, sample: SampleId, tokens: int) -> Response:
        running = self._running.pop(sample)
        self._start_sum -= running.prompt_tokens - running.start
        return Response(sample, tokens, self._spans(running.start, tokens))

    def _spans(self, start: float, tokens: int) -> tuple[VersionSpan, ...]:
        """Returns the spans of a response from step `start` on: a version drew the tokens of the steps from its publication to the next."""
        changes: deque[tuple[int, int]] = deque()
        for step, version in reversed(self._versions):
            changes.appendleft((max(0, floor(step - start + _ROUNDING)), version))
            if step <= start + _ROUNDING:
                break
        ends: Sequence[int] = [first for first, _ in list(changes)[1:]] + [tokens]
        spans = (VersionSpan(version, first, end) for (first, version), end in zip(changes, ends, strict=True))
        return tuple(span for span in spans if span.start < span.end)
