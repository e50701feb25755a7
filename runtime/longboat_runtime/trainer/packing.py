"""Decides which segments go through the model together, and on which rank. Pure."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence

# A bin is the positions of the segments of one forward pass, packed one after another or padded, the longest first, so that those of
# equal length are neighbours; it may be empty.
Bin = tuple[int, ...]


class SegmentTooLong(ValueError):
    """A segment has more tokens than a bin holds."""

    def __init__(self, position: int, tokens: int, capacity: int) -> None:
        super().__init__(position, tokens, capacity)
        self.position, self.tokens, self.capacity = position, tokens, capacity

    def __str__(self) -> str:
        return f"segment {self.position} has {self.tokens} tokens, a bin holds {self.capacity}"


def pack(tokens: Sequence[int], capacity: int, ranks: int) -> list[list[Bin]]:
    """Packs segments into the bins of every rank. `tokens[i]` counts those of segment i; no bin exceeds `capacity` tokens.

    All ranks get equally many bins, since FSDP's collectives run once for each; a rank without work gets empty ones. Bins are dealt
    by size, so those that run at the same time on different ranks are of similar size. The same input gives the same bins.

    Best-fit-decreasing says how many bins are needed; that number is rounded up to a multiple of `ranks` and the segments are
    spread evenly over it (longest first, to the emptiest bin), unless that overflows a bin. Raises SegmentTooLong.
    """
    bins = best_fit_decreasing(tokens, capacity)
    rows = max(1, -(-len(bins) // ranks))
    even = least_loaded(tokens, rows * ranks)
    if all(load(members, tokens) <= capacity for members in even):
        bins = even
    return _distribute(bins, [load(members, tokens) for members in bins], rows, ranks)


def pad(tokens: Sequence[int], capacity: int, ranks: int) -> list[list[Bin]]:
    """Packs segments that are padded to the longest of their bin into the bins of every rank; see `pack`. Padding counts as tokens.

    Segments of similar length share a bin: longest first, each into the bin of the one before it while that has room, which
    needs the fewest bins. That number is rounded up to a multiple of `ranks`, and bins are as small as that number allows.
    Raises SegmentTooLong.
    """
    order = _longest_first(tokens)
    if order and tokens[order[0]] > capacity:
        raise SegmentTooLong(order[0], tokens[order[0]], capacity)
    rows = max(1, -(-len(_runs(order, tokens, capacity)) // ranks))
    sizes = range(max(tokens, default=0), capacity + 1)
    smallest = bisect_left(sizes, True, key=lambda size: len(_runs(order, tokens, size)) <= rows * ranks)
    bins = _runs(order, tokens, sizes[smallest])
    return _distribute(bins, [padded(members, tokens) for members in bins], rows, ranks)


def _runs(order: Sequence[int], tokens: Sequence[int], capacity: int) -> list[Bin]:
    """Cuts `order` (longest segment first) into bins of at most `capacity` tokens with padding."""
    bins, start = [], 0
    while start < len(order):
        end = start + capacity // tokens[order[start]]
        bins.append(tuple(order[start:end]))
        start = end
    return bins


def _distribute(bins: Sequence[Bin], costs: Sequence[int], rows: int, ranks: int) -> list[list[Bin]]:
    """Deals `rows` bins to each rank, the costliest first, padded with empty bins."""
    ranked = [members for _, members in sorted(zip([-cost for cost in costs], bins, strict=True))]
    ranked += [()] * (rows * ranks - len(ranked))
    return [ranked[rank::ranks] for rank in range(ranks)]


def best_fit_decreasing(tokens: Sequence[int], capacity: int) -> list[Bin]:
    """Makes bins of at most `capacity` tokens: longest segment first, each into the fullest bin that still has room for it.

    Asymptotically at most 11/9 of the optimal number of bins (Johnson et al. 1974). Raises SegmentTooLong.
    """
    bins: list[list[int]] = []
    room: list[tuple[int, int]] = []  # (free tokens, bin), sorted
    for position in _longest_first(tokens):
        size = tokens[position]
        if size > capacity:
            raise SegmentTooLong(position, size, capacity)
        fit = bisect_left(room, (size, -1))
        if fit < len(room):
            free, chosen = room.pop(fit)
        else:
            free, chosen = capacity, len(bins)
            bins.append([])
        bins[chosen].append(position)
        insort(room, (free - size, chosen))
    return [tuple(members) for members in bins]


def least_loaded(tokens: Sequence[int], count: int) -> list[Bin]:
    """Makes `count` bins of about equal size: longest segment first, each into the bin with the fewest tokens (Graham 1969)."""
    bins: list[list[int]] = [[] for _ in range(count)]
    loads = [(0, index) for index in range(count)]
    for position in _longest_first(tokens):
        filled, chosen = loads.pop(0)
        bins[chosen].append(position)
        insort(loads, (filled + tokens[position], chosen))
    return [tuple(members) for members in bins]


def load(members: Bin, tokens: Sequence[int]) -> int:
    """Counts the tokens in a bin."""
    return sum(tokens[position] for position in members)


def padded(members: Bin, tokens: Sequence[int]) -> int:
    """Counts the tokens in a bin when each segment is padded to the longest."""
    return len(members) * max((tokens[position] for position in members), default=0)


def split(count: int, parts: int) -> list[range]:
    """Splits `count` places in order into `parts` runs whose sizes differ by at most one."""
    return [range(count * part // parts, count * (part + 1) // parts) for part in range(parts)]


def _longest_first(tokens: Sequence[int]) -> list[int]:
    return sorted(range(len(tokens)), key=lambda position: (-tokens[position], position))
