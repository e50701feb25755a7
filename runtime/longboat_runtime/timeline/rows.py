"""Where bars stand: lanes of rows, in which no two bars overlap. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

from longboat_runtime.timeline.bars import Bar, Round


@dataclass(frozen=True, slots=True)
class Lane:
    """The bars of one engine, each with its row (from 0), or of samples that no engine finished (`engine` is None)."""

    engine: str | None
    rows: int
    bars: tuple[tuple[int, Bar], ...]


def lanes(rounds: Iterable[Round]) -> list[Lane]:
    """A lane for each engine, by name (numbers in it by value), and last that of unfinished samples, if there are any.

    Bars of a round stand in the order of their ends, so that its tail can be seen.
    """
    found: dict[str | None, list[Bar]] = {}
    for round_ in rounds:
        for bar in sorted(round_.bars, key=lambda bar: (bar.end, bar.start, bar.sample)):
            found.setdefault(bar.engine, []).append(bar)
    return [_lane(engine, found[engine]) for engine in sorted(found, key=_order)]


def stack(intervals: Sequence[tuple[float, float]]) -> list[int]:
    """A row for each interval (start, end), in this order, so that those of a row don't overlap."""
    rows: list[int] = []
    free: list[tuple[float, int]] = []
    used, latest = 0, float("-inf")
    for start, end in intervals:
        if start >= latest:
            # Nothing runs: begin at the top again, not at the row that happened to be free first. In order, so it is a heap.
            free = [(latest, row) for row in range(used)]
        if free and free[0][0] <= start:
            _, row = heappop(free)
        else:
            row, used = used, used + 1
        heappush(free, (end, row))
        latest = max(latest, end)
        rows.append(row)
    return rows


def _lane(engine: str | None, bars: Sequence[Bar]) -> Lane:
    rows = stack([(bar.start, bar.end) for bar in bars])
    return Lane(engine, max(rows) + 1, tuple(zip(rows, bars, strict=True)))


def _order(engine: str | None) -> tuple[bool, list[str | int]]:
    words = re.split(r"(\d+)", engine or "")
    return engine is None, [int(word) if word.isdigit() else word for word in words]
