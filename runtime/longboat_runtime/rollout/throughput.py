"""Models what engines take for a step, by their devices, sequences and tokens in context. Pure."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise


@dataclass(frozen=True, slots=True)
class EngineModel:
    """Models the speed and the KV cache of engines of one size.

    The KV cache holds `kv_tokens` in blocks of `block_tokens`. Computing a prompt, or a preempted sequence again, takes `prefill_seconds`
    for each token. A decode step of `sequences[i]` sequences with `contexts[j]` tokens each in context takes `seconds[i][j]`; both axes
    ascend strictly. Raises ValueError for impossible values.
    """

    kv_tokens: int
    prefill_seconds: float
    sequences: tuple[int, ...]
    contexts: tuple[int, ...]
    seconds: tuple[tuple[float, ...], ...]
    block_tokens: int = 16

    def __post_init__(self) -> None:
        for axis in (self.sequences, self.contexts):
            if not axis or min(axis) < 1 or any(low >= high for low, high in pairwise(axis)):
                raise ValueError(f"sequences and contexts must ascend from 1 or more: {axis}")
        shape = {len(row) for row in self.seconds}
        if len(self.seconds) != len(self.sequences) or shape != {len(self.contexts)}:
            raise ValueError("seconds need a row for each number of sequences and a column for each context")
        if min(self.kv_tokens, self.block_tokens) < 1 or self.prefill_seconds < 0 or min(map(min, self.seconds)) <= 0:
            raise ValueError(
                "kv_tokens and block_tokens must be at least 1, seconds above 0, prefill_seconds at least 0"
            )

    def step_seconds(self, sequences: int, tokens: float) -> float:
        """Returns the seconds of a decode step of `sequences` sequences that have `tokens` in context together.

        Linear between the cells in both directions; constant below the first, and along the last two beyond the last. At least 1e-6.
        """
        row, share = _place(self.sequences, sequences)
        column, part = _place(self.contexts, tokens / sequences)
        beside = column + 1 if part else column
        values = self.seconds[row]
        seconds = values[column] + part * (values[beside] - values[column])
        if share:
            values = self.seconds[row + 1]
            seconds += share * (values[column] + part * (values[beside] - values[column]) - seconds)
        return max(seconds, 1e-6)


# Models by the number of devices of an engine.
Throughput = Mapping[int, EngineModel]


@dataclass(frozen=True, slots=True)
class Profile:
    """Engines of each size: what their rounds are priced by, and the seconds that a change to them takes."""

    throughput: Throughput
    change_seconds: Mapping[int, float]

    def with_kv_tokens(self, tokens: Mapping[int, int]) -> Profile:
        """Returns the profile with these KV caches, in tokens by size. A size that `tokens` lacks keeps its own."""
        throughput = {
            size: replace(model, kv_tokens=tokens.get(size, model.kv_tokens)) for size, model in self.throughput.items()
        }
        return replace(self, throughput=throughput)


def _place(axis: Sequence[int], value: float) -> tuple[int, float]:
    """Returns which segment of the axis a value is in, and how far, in lengths of the segment.

    Below the first segment, or without one, that is 0; beyond the last it is above 1.
    """
    if len(axis) == 1 or value <= axis[0]:
        return 0, 0.0
    place = min(bisect_right(axis, value) - 1, len(axis) - 2)
    return place, (value - axis[place]) / (axis[place + 1] - axis[place])
