"""Computes how long engines of one size take for a round, from a model of their steps. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush, merge
from itertools import islice
from math import ceil

import numpy as np

from longboat_runtime.rollout.throughput import EngineModel
from longboat_runtime.rounds.measurements import RoundWork

# The lengths of a round are represented by at most this many quantiles.
POINTS = 512
# Factor by which a response that was stopped with its round would have been longer.
STOPPED_LENGTH_FACTOR = 1.25
# At most this many responses of a round are computed, or those of one engine if they are more.
COMPUTED = 2048


@dataclass(frozen=True, slots=True)
class Limits:
    """An engine runs at most `max_sequences` at once, and a response has at most `max_tokens`."""

    max_sequences: int
    max_tokens: int


@dataclass(frozen=True, slots=True)
class Work:
    """A round's `samples` responses, to prompts of `prompt_tokens` tokens.

    Once `completed` of them have ended, the others are stopped. `lengths`, ascending, are quantiles of the tokens that they would have
    if none were stopped.
    """

    samples: int
    completed: int
    prompt_tokens: float
    lengths: tuple[int, ...]


def work_of(measured: RoundWork, max_tokens: int) -> Work:
    """Estimates the round's work as if no response had been stopped with it.

    A stopped response would have become longer by the factor STOPPED_LENGTH_FACTOR, up to `max_tokens`.
    """
    responses = measured.responses
    share = min(1.0, POINTS / max(1, responses.samples))
    ended = _at_even_shares(responses.lengths, round(share * responses.completed))
    stopped = _at_even_shares(responses.stopped, round(share * (responses.samples - responses.completed)))
    continued = (min(max_tokens, ceil(STOPPED_LENGTH_FACTOR * (tokens + 1))) for tokens in stopped)
    lengths = tuple(sorted([*ended, *continued]))
    return Work(responses.samples, responses.completed, measured.prompt_tokens, lengths)


def _at_even_shares(values: Sequence[int], count: int) -> list[int]:
    """Interpolates `count` of the ascending values linearly, at even shares."""
    if not values or count < 1:
        return []
    places = (np.arange(count) + 0.5) * len(values) / count - 0.5
    return [round(value) for value in np.interp(places, range(len(values)), values)]


def round_seconds(model: EngineModel, engines: int, max_sequences: int, work: Work) -> float:
    """Predicts the seconds of a round on equal engines, until `completed` responses have ended, on whichever engine.

    Engines get about equally many responses, at random as to their length. If there are more responses than COMPUTED, a part of
    the engines, with its part of the responses, stands for all.
    """
    each = max(1, ceil(work.samples / engines))
    computed = max(1, min(engines, COMPUTED // each))
    samples = min(work.samples, computed * each)
    needed = ceil(work.completed * samples / max(1, work.samples))
    if not needed or not work.lengths:
        return 0.0
    lengths = [max(1, work.lengths[number * len(work.lengths) // samples]) for number in range(samples)]
    # Sizes of engines are priced with the same order, unless COMPUTED leaves them different numbers of responses.
    shuffled = np.random.default_rng(0).permutation(lengths).tolist()
    ends = (
        _ends(model, max_sequences, ceil(work.prompt_tokens), shuffled[first::computed]) for first in range(computed)
    )
    return next(islice(merge(*ends), needed - 1, None))


def _ends(model: EngineModel, max_sequences: int, prompt: int, lengths: Sequence[int]) -> Iterator[float]:
    """Yields the seconds at which the responses of one engine, to prompts of `prompt` tokens, end, in order.

    It is computed from one event to the next: responses come and go, and between two such moments each gets a token a step. Up to
    `max_sequences` run at once, as long as the KV cache holds their tokens; others wait in order. If it is full, the one that began last
    is preempted: it is the first to continue once there is room, and its tokens are computed again. Prompts shared within a group are
    ignored.
    """
    capacity = max(model.kv_tokens, 1)
    waiting = deque((prompt, length) for length in lengths)  # tokens in context, tokens to come
    seconds, steps, cached, stamp = 0.0, 0, 0, 0
    ends: list[tuple[int, int]] = []  # step of the end, stamp
    running: dict[int, tuple[int, int]] = {}  # by stamp, in order: tokens in context at step 0, step of the end
    while waiting or running:
        while (
            waiting
            and len(running) < max_sequences
            and (cached + waiting[0][0] + len(running) < capacity or not running)
        ):
            context, rest = waiting.popleft()
            seconds += model.prefill_seconds * context
            running[stamp] = context - steps, steps + rest
            heappush(ends, (steps + rest, stamp))
            cached, stamp = cached + context, stamp + 1
        while ends[0][1] not in running:
            heappop(ends)
        count = len(running)
        until_end = ends[0][0] - steps
        until_full = (capacity - cached) // count if count > 1 else until_end
        ahead = max(0, min(until_end, until_full))
        if ahead:
            # A step's time is linear in the tokens: all of them take as long as if each had those of the middle.
            seconds += ahead * model.step_seconds(count, cached + count * (ahead - 1) / 2)
            steps, cached = steps + ahead, cached + count * ahead
        if ahead == until_end:
            while ends and ends[0][0] <= steps:
                _, ended = heappop(ends)
                if ended in running:
                    cached -= running.pop(ended)[0] + steps
                    yield seconds
        else:
            _, (base, end) = running.popitem()
            cached -= base + steps
            waiting.appendleft((base + steps, end - steps))
