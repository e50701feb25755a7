"""Rounds over time: a bar for each try at a sample, a span for each piece of other work, and the rounds chosen from them. Pure.

All times are Unix seconds, as recorded by the driver.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from longboat_runtime.rounds.round_kind import RoundKind
from longboat_runtime.samples import SampleId

# More rounds are too narrow to read; they are shown if asked for.
_LAST = 6
_RANGE = re.compile(r"(\d+)(?:-(\d+))?")


class Fate(StrEnum):
    """Says what became of a sample."""

    KEPT = "kept"
    """Part of its round's batch."""
    SURPLUS = "surplus"
    """Beyond the first `groupSize` responses of its group."""
    DEFERRED = "deferred"
    """Its group went back to the queue."""
    CARRIED = "carried"
    """Its round went on without its group, which continues in a later one, with the tokens made so far."""
    MOVED = "moved"
    """Another engine continued it, after the tokens made so far."""
    DROPPED = "dropped"
    LOST = "lost"
    """Its engine is gone or gave it up, or what the store had of it is gone."""
    OPEN = "still open"
    """It runs, or its group is undecided, where the log ends."""


@dataclass(frozen=True, slots=True)
class Bar:
    """One try at one sample, from its launch (waiting in the engine included) to the event that ended it, or the log's end.

    `engine` is None and `tokens` 0 if no engine gave it back: the log has them for finished, stopped, paused and moved samples. A try
    that continued a sample has the tokens that it added. `domain` is the one that its prompt was drawn from; empty if the
    job has no quotas.
    """

    sample: SampleId
    start: float
    end: float
    engine: str | None
    tokens: int
    fate: Fate
    domain: str = ""


@dataclass(frozen=True, slots=True)
class Round:
    """One round.

    `closed` is None while it is open, `step` until its training starts. `kept`, `deferred`, `carried` and `dropped` count its groups.
    """

    number: int
    kind: RoundKind
    version: int
    opened: float
    closed: float | None
    step: int | None
    kept: int
    deferred: int
    carried: int
    dropped: int
    bars: tuple[Bar, ...]

    @property
    def tokens(self) -> int:
        """Response tokens of all bars, whatever became of the samples."""
        return sum(bar.tokens for bar in self.bars)


class Work(StrEnum):
    """Names the work that is done beside rounds and between them.

    A publication includes the evaluation of what it published, except under BoundedAsync.
    """

    STREAM = "stream"
    """A chunk of the step is trained while its round is open."""
    TRAIN = "train"
    PUBLISH = "publish"
    RESHAPE = "reshape"
    DRAIN = "drain"
    """A rollout pod that the job gives back is emptied."""


@dataclass(frozen=True, slots=True)
class Span:
    """Work on a step (for a publication: on the weights that this step made; a reshape and a drain have the newest step at their end).

    `done` is False if it failed or hasn't ended.
    """

    work: Work
    step: int
    start: float
    end: float
    done: bool


@dataclass(frozen=True, slots=True)
class Pool:
    """A reward pool: from each time on, how many grades had no answer (`asked`), and how many CPUs it might have, if they move."""

    name: str
    asked: tuple[tuple[float, float], ...]
    cpus: tuple[tuple[float, float], ...] = ()

    def between(self, start: float, end: float) -> Pool:
        """Returns the pool from `start` to `end`. What it had before `start` counts from there on."""
        return Pool(self.name, _between(self.asked, start, end), _between(self.cpus, start, end))


def _between(course: Sequence[tuple[float, float]], start: float, end: float) -> tuple[tuple[float, float], ...]:
    before = [(start, value) for time, value in course if time <= start][-1:]
    return (*before, *(point for point in course if start < point[0] <= end))


@dataclass(frozen=True, slots=True)
class Gap:
    """Marks a time in which no driver whose work survived ran: from the last event of an incarnation to the start of the next one."""

    start: float
    end: float


@dataclass(frozen=True, slots=True)
class Timeline:
    """Rounds in the order of their numbers, spans and gaps by start, pools by name; `end` is the last moment of all of them."""

    rounds: tuple[Round, ...]
    spans: tuple[Span, ...]
    gaps: tuple[Gap, ...]
    end: float
    pools: tuple[Pool, ...] = ()

    @property
    def start(self) -> float:
        """Unix time at which the first round was opened. Raises IndexError if there is none."""
        return self.rounds[0].opened


def choose(timeline: Timeline, wanted: str | None = None) -> Timeline:
    """Cuts a timeline, with at least one round, to the rounds `wanted`, such as `3-7` or `3`, with all that belongs to them.

    By default the last whole period (short rounds and the long one that follows) if it has fewer than 6 rounds, else the last 6.
    Raises ValueError, with a message for people, if `wanted` is malformed, or the log doesn't have all of these rounds.
    """
    rounds = timeline.rounds
    if wanted is None:
        period, last = _last_period(rounds), rounds[-_LAST:]
        return _cut(timeline, period if 0 < len(period) < len(last) else last)
    first, last_ = _ends(wanted)
    chosen = [round_ for round_ in rounds if first <= round_.number <= last_]
    if len(chosen) != last_ - first + 1:
        raise ValueError(f"the log has rounds {rounds[0].number} to {rounds[-1].number}; give a range of these")
    return _cut(timeline, chosen)


def _ends(wanted: str) -> tuple[int, int]:
    match = _RANGE.fullmatch(wanted.strip())
    first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
    if first > last:
        raise ValueError("write a range of round numbers such as 3-7, or one number")
    return first, last


def _last_period(rounds: Sequence[Round]) -> Sequence[Round]:
    """Returns the last closed long round that follows short ones, after those; empty if there is none."""
    kinds = [round_.kind for round_ in rounds]
    for end in range(len(rounds) - 1, 0, -1):
        if rounds[end].closed and kinds[end] is RoundKind.LONG and kinds[end - 1] is RoundKind.SHORT:
            start = next((i for i in range(end - 1, -1, -1) if kinds[i] is RoundKind.LONG), -1) + 1
            return rounds[start : end + 1]
    return ()


def _cut(timeline: Timeline, rounds: Sequence[Round]) -> Timeline:
    steps = {round_.step for round_ in rounds}
    start = rounds[0].opened
    spans = tuple(span for span in timeline.spans if span.step in steps and span.start >= start)
    ends = [bar.end for round_ in rounds for bar in round_.bars] + [span.end for span in spans]
    end = max([*ends, *(round_.closed or round_.opened for round_ in rounds)])
    gaps = tuple(gap for gap in timeline.gaps if start <= gap.start and gap.end <= end)
    pools = tuple(pool.between(start, end) for pool in timeline.pools)
    return Timeline(tuple(rounds), spans, gaps, end, pools)
