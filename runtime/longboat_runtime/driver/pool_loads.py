"""Measures what reward pools do, round by round."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from longboat_runtime.reward.cpus import PoolLoad
from longboat_runtime.reward.protocol import RewardScheduler
from longboat_runtime.rounds import measurements

# How often the loads of pools are read, in seconds.
LOOK_SECONDS = 0.5
# The most points that the course of a round has besides its end: beyond that every other one is dropped, and points are taken more seldom.
MOST_POINTS = 64


@dataclass(slots=True)
class Course:
    """Follows one pool through a round, by the loads that it is shown, the first one at `opened` (in seconds, like all times)."""

    opened: float
    first: PoolLoad
    last: PoolLoad = field(init=False)
    waiting: int = 0
    queue_seconds: float = 0.0
    _points: list[tuple[float, int]] = field(default_factory=list)
    _every: float = 0.0

    def __post_init__(self) -> None:
        self.last = self.first
        self.look(self.opened, self.first)

    def look(self, now: float, load: PoolLoad) -> None:
        """Takes in the pool's load at this time."""
        self.last = load
        self.waiting = max(self.waiting, load.waiting)
        self.queue_seconds = max(self.queue_seconds, load.queue_seconds)
        at = now - self.opened
        points = self._points
        if points and (load.asked == points[-1][1] or at < points[-1][0] + self._every):
            return
        points.append((round(at, 3), load.asked))
        if len(points) > MOST_POINTS:
            self._points = points[::2]
            self._every = max(2 * self._every, at / MOST_POINTS)

    def ended(self, now: float) -> measurements.PoolGrading:
        """Returns the whole course, which ends now."""
        points = self._points
        if points[-1][1] != self.last.asked:
            points.append((round(now - self.opened, 3), self.last.asked))
        return measurements.PoolGrading(
            arrived=self.last.arrived - self.first.arrived,
            graded=self.last.graded - self.first.graded,
            cpu_seconds=round(self.last.cpu_seconds - self.first.cpu_seconds, 3),
            waiting=self.waiting,
            queue_seconds=round(self.queue_seconds, 3),
            asked=tuple(points),
        )


class PoolLoads:
    """Looks at all pools; what they do belongs to the newest round until that is trained. `clock` is in seconds."""

    def __init__(self, rewards: RewardScheduler, clock: Callable[[], float]) -> None:
        self._rewards, self._clock = rewards, clock
        self._round: int | None = None
        self._courses: dict[int, Mapping[str, Course]] = {}

    async def run(self) -> None:
        """Looks every LOOK_SECONDS, forever."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            self._sample_loads()

    def begin(self, number: int) -> None:
        """Assigns the work of pools to this round from now on."""
        self._sample_loads()
        now = self._clock()
        self._courses[number] = {name: Course(now, load) for name, load in self._rewards.loads.items()}
        self._round = number

    def finish(self, number: int) -> measurements.RoundGraded | None:
        """Returns what pools did in the round, which is over; None if it wasn't begun here, or no pool had a load then."""
        if self._round == number:
            self._sample_loads()
            self._round = None
        courses, now = self._courses.pop(number, {}), self._clock()
        if not courses:
            return None
        return measurements.RoundGraded(number, {name: course.ended(now) for name, course in courses.items()})

    def _sample_loads(self) -> None:
        if self._round is None:
            return
        now, loads = self._clock(), self._rewards.loads
        for name, course in self._courses[self._round].items():
            if name in loads:
                course.look(now, loads[name])
