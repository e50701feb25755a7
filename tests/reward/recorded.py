"""Simulates processes whose threads run, wait for a CPU and sleep by a script, and what the kernel says of them at any time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto

from longboat_graders.times import OwnLimit, OwnTime, Processes, Reading, Slowdown

_TICKS_PER_SECOND = 100


class State(Enum):
    RUNS = auto()
    WAITS = auto()
    """It could run, but others have the CPUs."""
    SLEEPS = auto()
    ENDED = auto()


RUNS, WAITS, SLEEPS = State.RUNS, State.WAITS, State.SLEEPS


@dataclass(frozen=True, slots=True)
class Thread:
    """Scripts the only thread of a process: it begins at `begun` and ends after its spans, which are states and their seconds."""

    spans: Sequence[tuple[State, float]]
    begun: float = 0.0

    def at(self, now: float) -> tuple[float, float, State]:
        """Returns the seconds that it has run, the seconds that the kernel says it has waited, and its state."""
        ran = waited = 0.0
        left = now - self.begun
        for state, seconds in self.spans:
            if left < seconds:
                # The kernel adds a wait once it is over.
                return ran + (left if state is RUNS else 0.0), waited, state
            left -= seconds
            ran += seconds if state is RUNS else 0.0
            waited += seconds if state is WAITS else 0.0
        return ran, waited, State.ENDED

    @property
    def end(self) -> float:
        return self.begun + sum(seconds for _, seconds in self.spans)


class Recorded(Processes):
    """Says what the kernel would say at time `now`. Processes that have ended were waited for, unless they are `unseen`.

    States are read `late` seconds after the threads.
    """

    def __init__(self, *threads: Thread, counted: bool = True, unseen: bool = False, late: float = 0.0) -> None:
        self._all, self._unseen, self._late = threads, unseen, late
        self.counted, self.now = counted, 0.0

    def read(self, *, first: bool = False) -> Reading:
        threads = {
            number: (round(1e9 * ran), round(1e9 * waited))
            for number, (ran, waited, state) in enumerate(self._states())
            if state is not State.ENDED
        }
        return Reading(self.now, threads if self.counted else {}, *self.cpu())

    def cpu(self) -> tuple[float, float]:
        states = self._states()
        ended = 0.0 if self._unseen else sum(ran for ran, _, state in states if state is State.ENDED)
        ended = int(ended * _TICKS_PER_SECOND + 1e-6) / _TICKS_PER_SECOND
        return ended + sum(ran for ran, _, state in states if state is not State.ENDED), ended

    def may_wait(self) -> bool:
        self.now += self._late
        return self.counted and any(state in (RUNS, WAITS) for _, _, state in self._states())

    def _states(self) -> list[tuple[float, float, State]]:
        return [thread.at(self.now) for thread in self._all if thread.begun <= self.now]


def first_passed(
    processes: Recorded,
    hard: float,
    learned: float | None = None,
    *,
    slowdown: float = 1.0,
    every: float = 0.02,
    until: float = 60.0,
) -> float | None:
    """Looks at a limit `every` so many seconds; returns the first time at which it is passed, or None if it isn't `until` then."""
    processes.now = 0.0
    limit = OwnLimit(OwnTime(processes, Slowdown(slowdown)), hard, learned)
    for look in range(1, int(until / every) + 1):
        processes.now = look * every
        if limit.passed():
            return processes.now
    return None
