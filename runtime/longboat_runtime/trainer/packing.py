"""Which samples go through the model together, and on which rank. Pure."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence

# A bin is the ascending positions of the samples packed one after another into one forward pass; it may be empty.
Bin = tuple[int, ...]


class SampleTooLong(ValueError):
    """A sample has more tokens than a bin holds."""

    def __init__(self, position: int, tokens: int, capacity: int) -> None:
        super().__init__(position, tokens, capacity)
        self.position, self.tokens, self.capacity = position, tokens, capacity

    def __str__(self) -> str:
        return f"sample {self.position} has {self.tokens} tokens, a bin holds {self.capacity}"


def pack(tokens: Sequence[int], capacity: int, ranks: int) -> list[list[Bin]]:
    """The bins of every rank. `tokens[i]` counts prompt and response of sample i; no bin exceeds `capacity` tokens.

    All ranks get equally many bins, since FSDP's collectives run once for each; a rank without work gets empty ones. Bins that
    run at the same time on different ranks are of similar size. The same input gives the same bins.

    Best-fit-decreasing says how many bins are needed; that number is rounded up to a multiple of `ranks` and the samples are
    spread evenly over it (longest first, to the emptiest bin), unless that overflows a bin. Raises SampleTooLong.
    """
    bins = best_fit_decreasing(tokens, capacity)
    rows = max(1, -(-len(bins) // ranks))
    even = least_loaded(tokens, rows * ranks)
    if all(load(members, tokens) <= capacity for members in even):
        bins = even
    bins.sort(key=lambda members: (-load(members, tokens), members))
    bins += [()] * (rows * ranks - len(bins))
    return [bins[rank::ranks] for rank in range(ranks)]


def best_fit_decreasing(tokens: Sequence[int], capacity: int) -> list[Bin]:
    """Bins of at most `capacity` tokens: longest sample first, each into the fullest bin that still has room for it.

    At most 11/9 of the optimal number of bins, plus one (Johnson 1974).
    """
    bins: list[list[int]] = []
    room: list[tuple[int, int]] = []  # (free tokens, bin), sorted
    for position in _longest_first(tokens):
        size = tokens[position]
        if size > capacity:
            raise SampleTooLong(position, size, capacity)
        fit = bisect_left(room, (size, -1))
        if fit < len(room):
            free, chosen = room.pop(fit)
        else:
            free, chosen = capacity, len(bins)
            bins.append([])
        bins[chosen].append(position)
        insort(room, (free - size, chosen))
    return [tuple(sorted(members)) for members in bins]


def least_loaded(tokens: Sequence[int], count: int) -> list[Bin]:
    """`count` bins of about equal size: longest sample first, each into the bin with the fewest tokens (Graham 1969)."""
    bins: list[list[int]] = [[] for _ in range(count)]
    loads = [(0, index) for index in range(count)]
    for position in _longest_first(tokens):
        filled, chosen = loads.pop(0)
        bins[chosen].append(position)
        insort(loads, (filled + tokens[position], chosen))
    return [tuple(sorted(members)) for members in bins]


def load(members: Bin, tokens: Sequence[int]) -> int:
    """Tokens in a bin."""
    return sum(tokens[position] for position in members)


def split(count: int, parts: int) -> list[range]:
    """`count` samples in order as `parts` runs whose sizes differ by one at most: the minibatches of a step."""
    return [range(count * part // parts, count * (part + 1) // parts) for part in range(parts)]


def _longest_first(tokens: Sequence[int]) -> list[int]:
    return sorted(range(len(tokens)), key=lambda position: (-tokens[position], position))
