"""Which rounds are shown. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

from longboat_runtime.rounds.events import RoundKind
from longboat_runtime.timeline.bars import Round, Timeline

# Rounds beyond this are too narrow to read unless they are asked for.
_LAST = 6
_RANGE = re.compile(r"(\d+)(?:-(\d+))?")


def choose(timeline: Timeline, wanted: str | None = None) -> Timeline:
    """Only the rounds `wanted`, such as `3-7` or `3`, with all that belongs to them, of a timeline with at least one.

    Without a wish: the last whole period (short rounds and the long one that follows) or the last 6 rounds, if those are fewer, or
    if there is no such period. Raises ValueError, told to a person, if the log doesn't have what is wanted.
    """
    rounds = timeline.rounds
    if wanted is None:
        period, last = _last_period(rounds), rounds[-_LAST:]
        return _cut(timeline, period if 0 < len(period) < len(last) else last)
    first, last_ = _ends(wanted)
    found = [round_ for round_ in rounds if first <= round_.number <= last_]
    if len(found) != last_ - first + 1:
        raise ValueError(f"the log has rounds {rounds[0].number} to {rounds[-1].number}; give a range of these")
    return _cut(timeline, found)


def _ends(wanted: str) -> tuple[int, int]:
    match = _RANGE.fullmatch(wanted.strip())
    first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
    if first > last:
        raise ValueError("write a range of round numbers such as 3-7, or one number")
    return first, last


def _last_period(rounds: Sequence[Round]) -> Sequence[Round]:
    """The last closed long round that follows short ones, and those; empty if there is none."""
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
    return Timeline(tuple(rounds), spans, gaps, end)
