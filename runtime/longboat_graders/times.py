"""Measures a grade's own time: wall time without the time in which its processes waited for a CPU.

A busy node makes a grade wait, a limit of its CPUs makes all grades wait; neither is anything that the graded response has done. The
kernel counts that wait for each thread (`/proc/PID/task/TID/schedstat`, its second number, in nanoseconds: since when it could run until
it does, throttling by a CPU quota included). Sleep isn't waiting, so a response that sleeps is no more patient than one that computes.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain

from longboat_graders.process_tree import children

TYPE_CHECKING = False  # `typing` itself would be in the memory of every grader
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

# Linux' number of the CPU clock of a process: its inverted id above three bits, which say "of all its threads, as scheduled".
_SCHEDULED_CLOCK = 2
_TICK = 1 / os.sysconf("SC_CLK_TCK")
# Of `/proc/PID/stat`, behind the name: ticks of CPU of children that have ended and were waited for.
_OF_CHILDREN = slice(13, 15)
# An observation this many CPU seconds ago counts half for the node's slowdown.
_HALF_SECONDS = 0.5
_CPUS = len(os.sched_getaffinity(0))
# The share of its limit at which a grade is measured first, to see how many threads it has; and how often after that, as a share too,
# if it has several threads: the time that they wait is known only while they exist.
_FIRST_LOOK, _TREE_LOOK = 0.25, 0.05
# A time that is only estimated has passed its limit once it is this many times as long as the hard one.
_ESTIMATED = 2
# A grade is given up after this many times its limit of wall time, however little of that was its own: it hardly gets a CPU. With the
# 100m that a pod keeps by default, a grade that computes takes ten times as long.
WALL_LIMIT_FACTOR = 20


def cpu_clock(pid: int) -> float:
    """Returns the CPU seconds of a process so far, threads included; 0 once it is gone."""
    try:
        return time.clock_gettime((~pid << 3) | _SCHEDULED_CLOCK)
    except OSError:
        return 0.0


def waiting_is_counted() -> bool:
    """Whether this kernel counts how long threads wait for a CPU: this one has run, so that it isn't all zeros."""
    try:
        with open("/proc/self/schedstat", "rb") as file:
            return int(file.read().split()[2]) > 0
    except (OSError, IndexError, ValueError):
        return False


class Slowdown:
    """Estimates how many times as long as its CPU seconds computing takes on this node now. The newest CPU seconds count most.

    `factor` is what another process has seen, if one has.
    """

    def __init__(self, factor: float = 1.0) -> None:
        self._ran = _HALF_SECONDS if factor > 1.0 else 0.0
        self._waited = self._ran * (factor - 1.0)

    def learn(self, ran: float, waited: float) -> None:
        """Learns that something has run, and has waited for a CPU meanwhile, for so many seconds."""
        fades = 0.5 ** (ran / _HALF_SECONDS)
        self._ran, self._waited = fades * self._ran + ran, fades * self._waited + waited

    @property
    def factor(self) -> float:
        return (self._ran + self._waited) / self._ran if self._ran else 1.0


@dataclass(frozen=True, slots=True)
class Reading:
    """Holds what the kernel says of processes at time `at` of the monotonic clock.

    `threads` has the nanoseconds that each thread has run and waited for a CPU so far. `cpu` is the CPU seconds of all processes, `ended`
    the part of processes that have ended and were waited for.
    """

    at: float
    threads: Mapping[int, tuple[int, int]]
    cpu: float
    ended: float


class Processes:
    """Reads what the kernel says of process `pid` and of all that it starts; with `below`, only of what it starts.

    A process that is `alone` can't start others. The threads of a `partner`, for whose answers they wait, are read too. `counted` says
    whether the kernel counts how long threads wait; if not, no threads are read.
    """

    def __init__(
        self, pid: int, *, counted: bool, alone: bool = False, below: bool = False, partner: int | None = None
    ) -> None:
        self._pid, self._alone, self._descendants_only, self._partner = pid, alone, below, partner
        self.counted = counted

    def read(self, *, first: bool = False) -> Reading:
        """Takes a reading.

        The `first` one reads the clock after the threads, later ones before, so that a wait during a reading counts as waited.
        """
        before = time.monotonic()
        threads = self._threads() if self.counted else {}
        return Reading(time.monotonic() if first else before, threads, *self.cpu())

    def cpu(self) -> tuple[float, float]:
        """Returns the CPU seconds of all processes, and the part of those that have ended."""
        if self._alone:
            return cpu_clock(self._pid), 0.0
        cpu = ended = 0.0
        for pid in self._pids():
            cpu += cpu_clock(pid)
            ended += _TICK * sum(map(int, _stat(f"/proc/{pid}/stat")[_OF_CHILDREN]))
        return cpu + ended, ended

    def may_wait(self) -> bool:
        """Whether a thread is runnable; False if waits aren't counted. If it waits, the kernel adds that wait only once it runs."""
        return self.counted and any(_stat(f"{path}/stat")[:1] == [b"R"] for path in self._paths())

    def _threads(self) -> dict[int, tuple[int, int]]:
        threads = {}
        for path in self._paths():
            if len(numbers := _read(f"{path}/schedstat").split()) == 3:
                threads[int(path.rpartition("/")[2])] = int(numbers[0]), int(numbers[1])
        return threads

    def _paths(self) -> Iterator[str]:
        """Yields the directories of the threads whose waiting counts."""
        for pid in chain(self._pids(), () if self._partner is None else (self._partner,)):
            for task in _listed(f"/proc/{pid}/task"):
                yield f"/proc/{pid}/task/{task}"

    def _pids(self) -> Iterator[int]:
        waiting = children(self._pid) if self._descendants_only else [self._pid]
        while waiting:
            pid = waiting.pop()
            yield pid
            if not self._alone:
                waiting += children(pid)


class OwnTime:
    """Measures one grade, done by `processes`, from now on. Pure apart from what `processes` reads.

    How long threads wait is what the kernel says at each `look`; the node's `slowdown` learns from it. What those of ended processes had
    waited since the look before is their CPU seconds since then times what the slowdown adds: an estimate. `certain` is what it has taken
    at least: its CPU seconds up to the last end of a process, and all but waiting since then. Where waiting isn't counted at all, the
    slowdown tells instead. `at` is the time of the last look, `tasks` the number of threads then (at least 1), `ran` the nanoseconds that
    all threads seen so far have run.

    `certain` may be more than the wall clock says where several threads compute at once. `elapsed` never is: it is the part of that time
    which certainly wasn't waiting, `estimated` that part if ended processes waited as estimated. `excused` seconds count as waited.
    """

    def __init__(self, processes: Processes, slowdown: Slowdown) -> None:
        self._processes, self._slowdown = processes, slowdown
        # Nanoseconds that each thread has run and waited, None before the first look; and the sums of threads that have ended.
        self._seen: Mapping[int, tuple[int, int]] | None = None
        self._ended = (0, 0)
        self.tasks, self.ran = 1, 0
        began = processes.read(first=True)
        self._begun_wait = self._waited(began.threads)
        self.at = self._begun = began.at
        self._begun_cpu, self._begun_children = began.cpu, began.ended
        # When a process last ended, and what had been waited and used, and used by those that have ended.
        self._since = self._begun, self._begun_wait, self._begun_cpu, self._begun_children
        # As of the last look; what had elapsed when it was last settled, and as of when.
        self._looked = self._settled = self._since
        self._elapsed = 0.0
        self.certain = self.elapsed = self.estimated = self.excused = 0.0

    @property
    def cpu_seconds(self) -> float:
        """CPU seconds of the grade's processes since it began, as far as they are there or were waited for.

        What was waited for is known to ticks (10 ms) only: for each parent the kernel rounds the sums of its user and of its system time.
        """
        return max(self._processes.cpu()[0] - self._begun_cpu, 0.0)

    def look(self) -> float:
        """Measures its own seconds so far and returns them: at least its CPU seconds."""
        now = self._processes.read()
        self.at, seconds = now.at, now.at - self._begun
        if not self._processes.counted:
            self.elapsed = self.estimated = seconds / self._slowdown.factor
            self.certain = max(self.elapsed, now.cpu - self._begun_cpu)
            return self.certain
        waited = self.excused + self._waited(now.threads)
        self._looked = now.at, waited, now.cpu, now.ended
        self.elapsed = self._elapsed + self._since_settled()
        if now.ended > self._since[3]:
            self._since = self._settled = self._looked
            self._elapsed = self.elapsed
        at, before, used, _ = self._since
        exact = max(now.at - at - (waited - before), 0.0)
        self.certain = max(used - self._begun_cpu + exact, now.cpu - self._begun_cpu)
        unseen = max(now.ended - self._begun_children - 1e-9 * self._ended[0], 0.0)
        likely = seconds - (waited - self._begun_wait) - unseen * (self._slowdown.factor - 1)
        self.estimated = max(likely, self.elapsed)
        return max(likely, self.certain)

    def settled_since(self) -> bool:
        """Looks again, unless a thread is runnable; whether no thread waited at the look before, which is settled then.

        None could run now, and none has run in between: one that waited would have to, and the kernel adds a wait only once it is over.
        What threads had waited by then doesn't excuse anything that comes after it. Threads that wait for each other, all at once,
        would else have waited longer than the clock says, and sleep for the rest.
        """
        looked, elapsed, threads_seen, certain, estimated = (
            self._looked,
            self.elapsed,
            self._seen,
            self.certain,
            self.estimated,
        )
        if self._processes.may_wait():
            return False
        self.look()
        if self._seen != threads_seen:
            return False
        self._settled, self._elapsed = looked, elapsed
        self.elapsed, self.certain, self.estimated = elapsed, certain, estimated
        return True

    def _since_settled(self) -> float:
        """Returns the seconds that have certainly elapsed since it was last settled: at least as if all CPUs had computed for it."""
        seconds, waited, cpu, ended = (now - then for now, then in zip(self._looked, self._settled, strict=True))
        least = min(cpu / _CPUS, seconds)
        return least if ended > 0.0 else max(seconds - waited, least)

    def _waited(self, threads: Mapping[int, tuple[int, int]]) -> float:
        """Returns how many seconds all threads seen so far have waited; `threads` are those of now."""
        for task, now in threads.items():
            before = now if self._seen is None else self._seen.get(task, (0, 0))
            if before[0] < now[0] and before[1] <= now[1]:
                self._slowdown.learn(1e-9 * (now[0] - before[0]), 1e-9 * (now[1] - before[1]))
        for task, (ran, waited) in (self._seen or {}).items():
            if threads.get(task, (-1, 0))[0] < ran:  # it has ended, and another thread has its number
                self._ended = self._ended[0] + ran, self._ended[1] + waited
        self._seen, self.tasks = threads, max(len(threads), 1)
        self.ran = self._ended[0] + sum(ran for ran, _ in threads.values())
        return 1e-9 * (self._ended[1] + sum(waited for _, waited in threads.values()))


class OwnLimit:
    """Limits of own seconds, and what they are limits of: the `hard` one, of what elapses, and a `learned` one, also of its CPU seconds.

    A learned one that isn't lower is none: `limited` says whether there is one.
    """

    def __init__(self, own: OwnTime, hard: float, learned: float | None = None) -> None:
        self.own, self._hard = own, hard
        self.limited = learned is not None and learned < hard
        self._seconds = hard if learned is None else min(hard, learned)
        # When it was last seen to be over, of the monotonic clock, and how many nanoseconds its threads had run.
        self._over_since: tuple[float, int] | None = None

    def passed(self) -> bool:
        """Looks whether it has certainly taken longer, or most likely far longer.

        A wait that isn't over is missing from what the kernel tells. If a thread may be waiting, it has waited no longer than since
        the last look, as long as it has run since then.
        """
        own, before, self._over_since = self.own, self._over_since, None
        own.look()
        now = own.at
        beyond = max(self._taken - self._seconds, own.estimated - _ESTIMATED * self._hard)
        ran = own.ran
        if own.settled_since():
            return beyond > 0.0
        if beyond <= 0.0:
            return False
        self._over_since = now, ran
        return before is not None and ran > before[1] and beyond > now - before[0]

    def first_look(self) -> float:
        """Returns after how many seconds to look at it first."""
        return self._seconds * _FIRST_LOOK

    def remaining(self) -> float:
        """Returns after how many seconds from the last look to look again."""
        remaining = self._seconds - self._taken
        return remaining if self.own.tasks == 1 else min(remaining / _CPUS, self._seconds * _TREE_LOOK)

    @property
    def _taken(self) -> float:
        return self.own.certain if self.limited else self.own.elapsed


def waited_here() -> float:
    """Returns the seconds that this process, which has one thread, has waited for a CPU; 0 if that isn't counted."""
    numbers = _read("/proc/self/schedstat").split()
    return 1e-9 * int(numbers[1]) if len(numbers) == 3 else 0.0


def _stat(path: str) -> list[bytes]:
    """Reads the fields behind the name, which may contain any character; none if the process or thread is gone."""
    return _read(path).rpartition(b")")[2].split()


def _read(path: str) -> bytes:
    with suppress(OSError), open(path, "rb") as file:
        return file.read()
    return b""


def _listed(path: str) -> list[str]:
    with suppress(OSError):
        return os.listdir(path)
    return []
