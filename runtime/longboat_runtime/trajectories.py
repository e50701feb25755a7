"""Makes the segments of a sample from its turns. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import accumulate
from typing import NamedTuple

import numpy as np

from longboat_runtime.samples import FloatArray, IntArray, Segment, TokenRange, VersionSpan, joined


@dataclass(frozen=True, slots=True)
class Turn:
    """One request of a sample to the model, and what the model drew: `token_ids`, with their log-probs and version spans.

    They were drawn behind `context` or, if it `continues` the turn of that number, behind all tokens of that turn and then `context`.
    """

    context: IntArray
    token_ids: IntArray
    logprobs: FloatArray
    spans: tuple[VersionSpan, ...]
    continues: int | None = None


class Trajectory(NamedTuple):
    """The segments of a sample, the first with its first turn, and the number of the one that ends with its last.

    `trains` are the numbers of the segments that train its turns, turn by turn.
    """

    segments: tuple[Segment, ...]
    reply: int
    trains: tuple[int, ...]


def trajectory(turns: Sequence[Turn]) -> Trajectory:
    """Makes a segment of each turn that none continues and of those that it continues, in the order in which segments begin.

    So each token is behind exactly those that it was drawn behind. Of segments that share a turn the first trains it; it is context in the
    others.

    Raises ValueError without turns, or if a turn continues one that isn't before it.
    """
    if not turns:
        raise ValueError("a sample without a turn")
    for number, turn in enumerate(turns):
        if turn.continues is not None and not 0 <= turn.continues < number:
            raise ValueError(f"turn {number} continues turn {turn.continues}")
    continued = {turn.continues for turn in turns}
    chains = sorted(_chain(turns, last) for last in range(len(turns)) if last not in continued)
    trains: dict[int, int] = {}
    made = []
    for segment, chain in enumerate(chains):
        trained = [number for number in chain if number not in trains]
        made.append(_segment(turns, chain, trained))
        trains |= dict.fromkeys(trained, segment)
    reply = [chain[-1] for chain in chains].index(len(turns) - 1)
    return Trajectory(tuple(made), reply, tuple(trains[number] for number in range(len(turns))))


def _chain(turns: Sequence[Turn], last: int) -> list[int]:
    """Lists the turns that turn `last` continues, the first one first, and itself."""
    chain, number = [last], turns[last].continues
    while number is not None:
        chain.append(number)
        number = turns[number].continues
    return chain[::-1]


def _segment(turns: Sequence[Turn], chain: Sequence[int], trained: Sequence[int]) -> Segment:
    tokens = [part for number in chain for part in (turns[number].context, turns[number].token_ids)]
    ends = accumulate(len(turns[number].context) + len(turns[number].token_ids) for number in chain)
    ranges = {
        number: TokenRange(end - len(turns[number].token_ids), end) for number, end in zip(chain, ends, strict=True)
    }
    return Segment(
        np.concatenate(tokens),
        tuple(ranges[number] for number in trained),
        np.concatenate([turns[number].logprobs for number in trained]),
        reduce(joined, (turns[number].spans for number in trained)),
    )
