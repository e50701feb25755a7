"""How long the engines of one size take for a round, computed from a model of their steps. Pure."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from heapq import heappop, heappush, merge
from itertools import islice
from math import ceil, sqrt
from operator import neg
from statistics import NormalDist, fmean

import numpy as np

from longboat_runtime.rollout import router
from longboat_runtime.rollout.throughput import EngineModel
from longboat_runtime.rounds.events import RoundWork

# Successive multiples of the golden ratio, of which only the fractions count, are spread evenly.
_GOLDEN = (sqrt(5) - 1) / 2
_NORMAL = NormalDist()
# Lengths of a round are computed with at most so many quantiles.
POINTS = 512
# A response that is stopped while none has ended later would have been longer by this factor.
BEYOND = 1.25
# A round is the mean of so many random deals of its responses to engines, if they are few: at most so many responses are computed, or
# those of one engine.
DEALS, COMPUTED = 4, 2048


@dataclass(frozen=True, slots=True)
class Limits:
    """An engine runs at most `max_sequences` at once, and a response has at most `max_tokens`."""

    max_sequences: int
    max_tokens: int


@dataclass(frozen=True, slots=True)
class Work:
    """A round's `samples` responses, to `prompts` prompts of `prompt_tokens` tokens.

    Once `completed` of them have ended, the others are stopped. `lengths`, ascending, are quantiles of the tokens that they would have
    if none were stopped; those of one prompt are alike by `prompt_correlation` (0 to 1).
    """

    samples: int
    completed: int
    prompts: int
    prompt_tokens: float
    lengths: tuple[int, ...]
    prompt_correlation: float = 0.0


def work_of(measured: RoundWork, max_tokens: int) -> Work:
    """The work that a round was, had none of its responses been stopped with it.

    Those that were would have become longer: as much as longer ones of the round (product-limit estimate: Kaplan and Meier 1958,
    Nonparametric estimation from incomplete observations), and beyond the longest that ended by the factor BEYOND; none has more than
    `max_tokens`. Those that were spared asked for what they got, and count as completed.
    """
    responses = measured.responses
    completed = responses.completed + responses.spared
    share = min(1.0, POINTS / max(1, responses.samples))
    ended = _at_even_shares(responses.lengths, round(share * responses.completed))
    spared = _at_even_shares(responses.spared_lengths, round(share * responses.spared))
    stopped = _at_even_shares(responses.stopped, round(share * (responses.samples - completed)))
    continued = (min(max_tokens, length) for length in _continued(stopped, ended, spared))
    return Work(
        responses.samples,
        completed,
        measured.prompts,
        measured.prompt_tokens,
        tuple(sorted([*ended, *spared, *continued])),
        measured.prompt_correlation,
    )


def _continued(stopped: Sequence[int], ended: Sequence[int], spared: Sequence[int]) -> list[int]:
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
        lengths.append(ceil(BEYOND * (max(tokens, longest) + 1)))
    return lengths


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


def round_seconds(model: EngineModel, engines: int, max_sequences: int, work: Work) -> float:
    """Seconds of a round on `engines` alike, until `completed` of its responses have ended, on whichever engine.

    Up to `router.IMBALANCE` responses to a prompt run on one engine, and each engine gets as many as any other, at random: the mean of DEALS
    deals.
    If there are more responses than COMPUTED, a part of the engines, with its part of the responses, stands for all, and there are
    fewer deals.
    """
    each = max(1, ceil(work.samples / engines))
    computed = max(1, min(engines, COMPUTED // each))
    samples = min(work.samples, computed * each)
    needed = ceil(work.completed * samples / max(1, work.samples))
    if not needed or not work.lengths:
        return 0.0
    lengths = [max(1, work.lengths[number * len(work.lengths) // samples]) for number in range(samples)]
    group = min(router.IMBALANCE, max(1, round(work.samples / max(1, work.prompts))))
    seconds = []
    for deal in range(max(1, min(DEALS, COMPUTED // samples))):
        dealt: list[list[int]] = [[] for _ in range(computed)]
        for number, places in enumerate(_groups(samples, group, work.prompt_correlation, deal)):
            dealt[number % computed] += [lengths[place] for place in places]
        ends = (_ends(model, max_sequences, ceil(work.prompt_tokens), each) for each in dealt)
        seconds.append(next(islice(merge(*ends), needed - 1, None)))
    return fmean(seconds)


@lru_cache(maxsize=2 * DEALS)
def _groups(count: int, size: int, correlation: float, seed: int) -> tuple[tuple[int, ...], ...]:
    """Groups of `size` of `count` ascending values, at random, whose intraclass correlation is about `correlation`.

    Each value has a key, correlated with its rank by the root of that, and neighbours by key form a group. All sizes of engines are
    priced with the same groups.
    """
    random = np.random.default_rng(seed)
    ranks = np.array([_NORMAL.inv_cdf((number + 0.5) / count) for number in range(count)])
    keys = sqrt(correlation) * ranks + sqrt(1 - correlation) * random.standard_normal(count)
    order = np.argsort(keys).tolist()
    groups = [tuple(order[start : start + size]) for start in range(0, count, size)]
    return tuple(groups[number] for number in random.permutation(len(groups)))


def _ends(model: EngineModel, max_sequences: int, prompt: int, lengths: Sequence[int]) -> Iterator[float]:
    """Yields the seconds at which the responses of one engine, to prompts of `prompt` tokens, end, in order.

    It is computed from one event to the next: responses come and go, and between two such moments each gets a token a step. Up to
    `max_sequences` run at once, as long as the KV cache holds their tokens; others wait in order. If it is full, the one that began last
    is preempted: it is the first to continue once there is room, and its tokens are computed again. A sequence's last block is half
    empty. That prompts of a group share memory isn't counted.
    """
    capacity, unused = max(model.kv_tokens, 1), model.block_tokens // 2
    waiting = deque((prompt, length) for length in lengths)  # tokens in context, tokens to come
    seconds, steps, held, stamp = 0.0, 0, 0, 0
    ends: list[tuple[int, int]] = []  # step of the end, stamp
    running: dict[int, tuple[int, int]] = {}  # by stamp, in order: tokens in context at step 0, step of the end
    while waiting or running:
        while (
            waiting
            and len(running) < max_sequences
            and (held + waiting[0][0] + unused + len(running) < capacity or not running)
        ):
            context, rest = waiting.popleft()
            seconds += model.prefill_seconds * context
            running[stamp] = context - steps, steps + rest
            heappush(ends, (steps + rest, stamp))
            held, stamp = held + context + unused, stamp + 1
        while ends[0][1] not in running:
            heappop(ends)
        count = len(running)
        until_end = ends[0][0] - steps
        until_full = (capacity - held) // count if count > 1 else until_end
        ahead = max(0, min(until_end, until_full))
        if ahead:
            # A step's time is linear in the tokens: all of them take as long as if each had those of the middle.
            seconds += ahead * model.step_seconds(count, held + count * ((ahead - 1) / 2 - unused))
            steps, held = steps + ahead, held + count * ahead
        if ahead == until_end:
            while ends and ends[0][0] <= steps:
                _, ended = heappop(ends)
                if ended in running:
                    held -= running.pop(ended)[0] + steps + unused
                    yield seconds
        else:
            _, (base, end) = running.popitem()
            held -= base + steps + unused
            waiting.appendleft((base + steps, end - steps))
