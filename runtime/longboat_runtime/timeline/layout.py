"""Lays out a picture and a trace: the time axis, lanes of rows without overlapping bars, and their labels. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

from longboat_runtime.timeline.bars import Bar, Gap, Pool, Round, Timeline

# Inches that a caption of 8 points and its short form take.
FULL, SHORT = 1.4, 0.45


@dataclass(frozen=True, slots=True)
class Axis:
    """Seconds on a picture's axis, counted from `start` (Unix seconds) without gaps: a job suspended overnight stays readable."""

    start: float
    gaps: tuple[Gap, ...]

    @classmethod
    def from_timeline(cls, timeline: Timeline) -> Axis:
        return cls(timeline.start, timeline.gaps)

    def at(self, time: float) -> float:
        """Returns the seconds from the axis' start to a Unix time, gaps left out. A moment within a gap is where the gap is."""
        skipped = sum(min(time, gap.end) - gap.start for gap in self.gaps if gap.start < time)
        return time - self.start - skipped


@dataclass(frozen=True, slots=True)
class Lane:
    """The bars of one engine, each with its row (from 0), or of samples that no engine finished (`engine` is None)."""

    engine: str | None
    rows: int
    bars: tuple[tuple[int, Bar], ...]


def lanes(rounds: Iterable[Round]) -> list[Lane]:
    """Makes a lane for each engine, by name (numbers in it by value), and last one for samples without an engine, if there are any.

    Bars of a round stand in the order of their ends, so that its tail can be seen.
    """
    bars: dict[str | None, list[Bar]] = {}
    for round_ in rounds:
        for bar in sorted(round_.bars, key=lambda bar: (bar.end, bar.start, bar.sample)):
            bars.setdefault(bar.engine, []).append(bar)
    return [_lane(engine, bars[engine]) for engine in sorted(bars, key=_order)]


def stack(intervals: Sequence[tuple[float, float]]) -> list[int]:
    """Returns the row (from 0) of each interval (start, end), in the given order; those of a row don't overlap."""
    rows: list[int] = []
    free: list[tuple[float, int]] = []
    used, latest = 0, float("-inf")
    for start, end in intervals:
        if start >= latest:
            # Nothing runs: start at the top again, not at the row that happened to become free first. It is sorted, and so a heap.
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


def title(job: str, rounds: Sequence[Round]) -> str:
    """Returns the title over these rounds, of which there is at least one."""
    first, last = rounds[0].number, rounds[-1].number
    which = f"round {first}" if first == last else f"rounds {first} to {last}"
    return f"{job}, {which}: a bar is a sample, from its launch to its end"


def caption(round_: Round, inches: float = FULL) -> str:
    """Returns number and kind and, if there is room, how many groups had which fate, how many tokens it has, and how long it was open.

    Empty if there is no room even for the former.
    """
    if inches < FULL:
        return f"{round_.number}\n{round_.kind}" if inches >= SHORT else ""
    prompts = f"{round_.kept:,} kept" + (f", {round_.deferred:,} deferred" if round_.deferred else "")
    prompts += f", {round_.carried:,} carried" if round_.carried else ""
    prompts += f"\n{round_.dropped:,} dropped" if round_.dropped else ""
    end = "still open" if round_.closed is None else f"closed after {duration(round_.closed - round_.opened)}"
    return f"round {round_.number}: {round_.kind}\n{prompts}\n{round_.tokens:,} tokens\n{end}"


def lane_name(lane: Lane) -> str:
    """Returns the label of a lane: the engine's name, or that none is recorded."""
    return f"engine {lane.engine}" if lane.engine else "not finished\n(engine not recorded)"


def steps(course: Sequence[tuple[float, float]], end: float) -> tuple[list[float], list[float]]:
    """Returns the times and values of a line that has each value from its time to the next one, and the last one to `end`."""
    times, values = [time for time, _ in course for _ in range(2)], [value for _, value in course for _ in range(2)]
    return [*times[1:], end] if times else [], values


def pool_name(pool: Pool) -> str:
    """Returns the pool's name, with the fewest and the most CPUs that it might have, if the log has them."""
    cpus = [cpus for _, cpus in pool.cpus]
    if not cpus:
        return pool.name
    least, most = min(cpus), max(cpus)
    return f"{pool.name} ({least:g} CPU)" if least == most else f"{pool.name} ({least:g} to {most:g} CPU)"


def duration(seconds: float) -> str:
    """Formats a duration in the unit that suits it: `4.2 s`, `3 min`, `5.5 h`."""
    if seconds < 120:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
