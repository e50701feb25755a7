"""Decides how many grades run at once within the CPU quota of the graders' container, which may change while they run."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from pathlib import Path

from longboat_graders.cgroup import cpu_limit, cpu_seconds, runnable

# How often the quota is read while there is something to grade, in seconds.
LOOK_SECONDS = 0.5
# Grades that use less than this share of the quota leave CPU unused.
_UNUSED = 0.75


@dataclass(frozen=True, slots=True)
class Felt:
    """Says how many CPUs were used since the last look, how many threads run or wait for a CPU now, and whether grades wait for others."""

    used: float
    runnable: int
    waiting: bool


def at_once(processes: int, quota: float | None, before: int, felt: Felt | None) -> int:
    """Decides how many grades run at once, given that it was `before`; `quota` is in CPUs, None without one. Pure.

    Without a quota all `processes` do. Otherwise one for each CPU of the quota, or part of one, from one to `processes`. Two grades on one
    CPU take twice as long each, which brings both nearer to their limits and nothing else. Grades that sleep or wait need no CPU. So one
    more runs, up to `processes`, for every look at which grades wait, CPU was left unused and fewer threads could run than the quota
    has CPUs. With as many the node is busy. One fewer runs, down to that rule, for every look at which more threads could run.
    """
    if quota is None:
        return processes
    cpus = max(math.ceil(quota), 1)
    least = min(cpus, processes)
    now = min(max(before, least), processes)
    if felt is None:
        return now
    if felt.runnable > cpus:
        return max(now - 1, least)
    idle = felt.used < _UNUSED * quota and felt.runnable < cpus
    return min(now + 1, processes) if felt.waiting and idle else now


class Quota:
    """Reads the quota of the container's cgroup below `root`; None reads nothing, so that all `processes` grade.

    `at_once` is how many grades run at once, `cpu_seconds` are those that the container has used, None without a quota: then others
    may use the same cgroup.
    """

    def __init__(self, processes: int, root: Path | None) -> None:
        self._processes, self._root = processes, root
        self._looked: float | None = None
        self.at_once = processes
        self.cpu_seconds: float | None = None
        self.look(waiting=False)

    def look(self, waiting: bool) -> None:
        """Follows a quota that has changed, and what grades made of it. `waiting` says whether grades wait for others."""
        quota = None if self._root is None else cpu_limit(self._root)
        if self._root is None or quota is None:
            self.at_once, self.cpu_seconds, self._looked = self._processes, None, None
            return
        before, since = self.cpu_seconds, self._looked
        now, used = time.monotonic(), cpu_seconds(self._root)
        felt = None
        if before is not None and used is not None and since is not None and now > since:
            felt = Felt((used - before) / (now - since), runnable(self._root), waiting)
        self.cpu_seconds, self._looked = used, now
        self.at_once = at_once(self._processes, quota, 1 if since is None else self.at_once, felt)

    def rest(self) -> None:
        """Rests until the next look, before which nothing is graded: the time until then says nothing about grades."""
        self._looked = None
