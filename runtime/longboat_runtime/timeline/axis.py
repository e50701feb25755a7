"""Seconds on a picture's axis. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from longboat_runtime.timeline.bars import Gap, Timeline


@dataclass(frozen=True, slots=True)
class Axis:
    """Counts from `start` (Unix seconds) and leaves gaps out: a job that slept for a night is still readable."""

    start: float
    gaps: tuple[Gap, ...]

    @classmethod
    def of(cls, timeline: Timeline) -> Axis:
        return cls(timeline.start, timeline.gaps)

    def at(self, time: float) -> float:
        """Seconds from the axis' start to a Unix time. A moment within a gap is where the gap is."""
        asleep = sum(min(time, gap.end) - gap.start for gap in self.gaps if gap.start < time)
        return time - self.start - asleep
