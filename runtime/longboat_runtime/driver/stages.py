"""Tracks what the driver is doing, since when, and how long each stage of a step took."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum


class Stage(StrEnum):
    """Stages of a job. If several run at once, the first in this order is the foremost."""

    START = "start"
    EXPORT = "export"
    TRAIN = "train"
    PUBLISH = "publish"
    RESHAPE = "reshape"
    EVALUATE = "evaluate"
    CHECKPOINT = "checkpoint"
    GENERATE = "generate"
    STREAM = "stream"
    REWARD = "reward"
    WRITE = "write"
    """The write of a checkpoint, in the background; `checkpoint` is the part that training waits for."""


@dataclass(slots=True)
class Activity:
    """Times of `clock`: the stage's seconds have been taken up to `counted`; `moved` is its last sign of progress."""

    counted: float
    moved: float


class StageClock:
    """The stages that run now, perhaps several. `clock` is monotonic, in seconds; `news` is set when the foremost changes."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock, self.news = clock, asyncio.Event()
        self._seconds: dict[Stage, float] = {}
        self.active: dict[Stage, Activity] = {}

    @property
    def foremost(self) -> Stage | None:
        return next((stage for stage in Stage if stage in self.active), None)

    def set(self, stage: Stage, active: bool) -> None:
        """Begins or ends a stage; does nothing if it already is in that state."""
        if active is (stage in self.active):
            return
        now, foremost = self._clock(), self.foremost
        if active:
            self.active[stage] = Activity(now, now)
        else:
            activity = self.active.pop(stage)
            self._seconds[stage] = self._seconds.get(stage, 0.0) + now - activity.counted
        if self.foremost is not foremost:
            self.news.set()

    def move(self, stage: Stage) -> None:
        """Notes that the stage made progress."""
        if stage in self.active:
            self.active[stage].moved = self._clock()

    @contextmanager
    def running(self, stage: Stage) -> Iterator[None]:
        """Runs the stage for the duration of the block."""
        self.set(stage, True)
        try:
            yield
        finally:
            self.set(stage, False)

    def seconds(self, stage: Stage) -> float:
        """Returns the seconds that the stage has run since the last call of `take`."""
        return self._until(self._clock()).get(stage, 0.0)

    def take(self) -> dict[Stage, float]:
        """Returns the seconds that each stage has run since the last call."""
        now = self._clock()
        taken, self._seconds = self._until(now), {}
        for activity in self.active.values():
            activity.counted = now
        return taken

    def _until(self, now: float) -> dict[Stage, float]:
        seconds = dict(self._seconds)
        for stage, activity in self.active.items():
            seconds[stage] = seconds.get(stage, 0.0) + now - activity.counted
        return seconds

    def stuck(self, deadline: float) -> dict[Stage, float]:
        """Returns the running stages without progress for more than `deadline` seconds, with the seconds since their last progress."""
        now = self._clock()
        return {stage: now - a.moved for stage, a in self.active.items() if now - a.moved > deadline}
