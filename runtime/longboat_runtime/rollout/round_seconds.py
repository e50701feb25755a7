"""How long the engines of one size take for a round, computed from a model of their steps. Pure."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from heapq import heappop, heappush, merge
from itertools import islice, repeat
from math import ceil, sqrt
from operator import neg
from statistics import fmean

import numpy as np

from longboat_runtime.rollout.throughput import EngineModel
from longboat_runtime.rounds.events import Responses

# Successive multiples of the golden ratio, of which only the fractions count, are spread evenly.
_GOLDEN = (sqrt(5) - 1) / 2
# Lengths of a round are computed with at most so many quantiles.
POINTS = 512
# A response that is stopped while no longer one is known would have been longer by this factor.
BEYOND = 1.25
# A round is the mean of so many random deals of its responses to engines, if they are few: at most so many responses are computed, or
# those of one engine.
DEALS, COMPUTED = 4, 2048


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


def work_of(responses: Responses, prompt_tokens: float, known: Sequence[int], max_tokens: int) -> Work:
    """The work that these responses are, had none been stopped with the round.

    Those that were would have become longer: as much as longer ones of the round (product-limit estimate: Kaplan and Meier 1958,
    Nonparametric estimation from incomplete observations), and beyond the longest that ended, as those of `known`, ascending; if none is
    longer, BEYOND times their own; none has more than `max_tokens`. Those that were spared asked for what they got, and count as completed.
    """
    completed = responses.completed + responses.spared
    share = min(1.0, POINTS / max(1, responses.samples))
    ended = _at_even_shares(responses.lengths, round(share * responses.completed))
    spared = _at_even_shares(responses.spared_lengths, round(share * responses.spared))
    stopped = _at_even_shares(responses.stopped, round(share * (responses.samples - completed)))
    continued = (min(max_tokens, length) for length in _continued(stopped, ended, spared, known))
    return Work(responses.samples, completed, prompt_tokens, tuple(sorted([*ended, *spared, *continued])))


def _continued(stopped: Sequence[int], ended: Sequence[int], spared: Sequence[int], known: Sequence[int]) -> list[int]:
    """Lengths that the `stopped` would have had, each at another share of the ways that it could have gone on."""
    censored, survival = sorted([*stopped, *spared]), [1.0]
    for number, length in enumerate(ended):
        running = len(ended) - number + len(censored) - bisect_left(censored, length)
        survival.append(survival[-1] * (1 - 1 / running))
    longest, lengths = ended[-1] if ended else 0, []
    for number, tokens in enumerate(stopped):
        reached = survival[bisect_right(ended, tokens)] * (1 - (number * _GOLDEN + 0.5) % 1)
        place = bisect_left(survival, -reached, key=neg)  # the first length that no more than this share exceeds
        if place <= len(ended):
            lengths.append(ended[max(place, 1) - 1])
            continue
        longer = known[bisect_right(known, max(tokens, longest)) :]
        beyond = ceil(BEYOND * (max(tokens, longest) + 1))
        lengths.append(longer[int((1 - reached / survival[-1]) * len(longer))] if longer else beyond)
    return lengths


def typical_length(responses: Responses) -> float:
    """The length by which half of the responses have ended, stopped ones counting as longer; the longest known if fewer have. Or 0."""
    if not responses.lengths:
        return 0.0
    half = ceil(responses.samples / 2 * len(responses.lengths) / responses.completed)
    return float(responses.lengths[min(half, len(responses.lengths)) - 1])


def _at_even_shares(values: Sequence[int], count: int) -> list[int]:
    """So many of the ascending values, between two of them linearly."""
    if not values or count < 1:
        return []
    places = ((number + 0.5) * len(values) / count - 0.5 for number in range(count))
    found = []
    for place in places:
        low = min(max(int(place), 0), len(values) - 1)
        high = min(low + 1, len(values) - 1)
        found.append(round(values[low] + max(0.0, place - low) * (values[high] - values[low])))
    return found


@dataclass(frozen=True, slots=True)
class RoundCost:
    """What a round costs: `preemptions` are those of all engines."""

    seconds: float
    preemptions: int


def round_seconds(model: EngineModel, engines: int, max_sequences: int, work: Work) -> float:
    """Seconds of a round on `engines` alike (`round_cost`)."""
    return round_cost(model, engines, max_sequences, work).seconds


def round_cost(model: EngineModel, engines: int, max_sequences: int, work: Work) -> RoundCost:
    """What a round costs on `engines` alike, until `completed` of its responses have ended, on whichever engine.

    Each engine gets as many responses as any other, at random as to their length: the mean of DEALS deals. If there are more responses
    than COMPUTED, a part of the engines, with its part of the responses, stands for all, and there are fewer deals.
    """
    each = max(1, ceil(work.samples / engines))
    computed = max(1, min(engines, COMPUTED // each))
    samples = min(work.samples, computed * each)
    needed = ceil(work.completed * samples / max(1, work.samples))
    if not needed or not work.lengths:
        return RoundCost(0.0, 0)
    lengths = [max(1, work.lengths[number * len(work.lengths) // samples]) for number in range(samples)]
    costs = []
    for deal in range(max(1, min(DEALS, COMPUTED // samples))):
        dealt = [lengths[place] for place in _shuffled(samples, deal)]
        ends = (
            _ends(model, max_sequences, ceil(work.prompt_tokens), dealt[first::computed]) for first in range(computed)
        )
        ended = list(islice(merge(*(zip(of, repeat(number), strict=False) for number, of in enumerate(ends))), needed))
        preemptions = {number: of for (_, of), number in ended}
        (seconds, _), _ = ended[-1]
        costs.append(RoundCost(seconds, sum(preemptions.values()) * engines // computed))
    return RoundCost(fmean(one.seconds for one in costs), round(fmean(one.preemptions for one in costs)))


@lru_cache(maxsize=2 * DEALS)
def _shuffled(count: int, seed: int) -> tuple[int, ...]:
    """The places of a deal. All sizes of engines are priced by the same ones; those of earlier rounds are of no use."""
    return tuple(np.random.default_rng(seed).permutation(count).tolist())


def _ends(model: EngineModel, max_sequences: int, prompt: int, lengths: Sequence[int]) -> Iterator[tuple[float, int]]:
    """When the responses of one engine, to prompts of `prompt` tokens, end, in order: seconds, and how often it has preempted by then.

    It is computed from one event to the next: responses come and go, and between two such moments each gets a token a step. Up to
    `max_sequences` run at once, as long as the KV cache holds their tokens; others wait in order. If it is full, the one that began last
    is preempted: it is the first to continue once there is room, and its tokens are computed again. That prompts of a group share memory
    isn't counted.
    """
    capacity = max(model.kv_tokens, 1)
    waiting = deque((prompt, length) for length in lengths)  # tokens in context, tokens to come
    seconds, steps, held, stamp, preemptions = 0.0, 0, 0, 0, 0
    ends: list[tuple[int, int]] = []  # step of the end, stamp
    running: dict[int, tuple[int, int]] = {}  # by stamp, in order: tokens in context at step 0, step of the end
    while waiting or running:
        while (
            waiting and len(running) < max_sequences and (held + waiting[0][0] + len(running) < capacity or not running)
        ):
            context, rest = waiting.popleft()
            seconds += model.prefill_seconds * context
            running[stamp] = context - steps, steps + rest
            heappush(ends, (steps + rest, stamp))
            held, stamp = held + context, stamp + 1
        while ends[0][1] not in running:
            heappop(ends)
        count = len(running)
        until_end = ends[0][0] - steps
        until_full = (capacity - held) // count if count > 1 else until_end
        ahead = max(0, min(until_end, until_full))
        if ahead:
            # A step's time is linear in the tokens: all of them take as long as if each had those of the middle.
            seconds += ahead * model.step_seconds(count, held + count * (ahead - 1) / 2)
            steps, held = steps + ahead, held + count * ahead
        if ahead == until_end:
            while ends and ends[0][0] <= steps:
                _, ended = heappop(ends)
                if ended in running:
                    held -= running.pop(ended)[0] + steps
                    yield seconds, preemptions
        else:
            preemptions += 1
            _, (base, end) = running.popitem()
            held -= base + steps
            waiting.appendleft((base + steps, end - steps))
