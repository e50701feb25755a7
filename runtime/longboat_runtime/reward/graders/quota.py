"""How many grades run at once within the CPU quota of the graders' container, which may change while they run."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from pathlib import Path

from longboat_runtime.cgroup import CpuUse, cpu_limit, cpu_use

# How often the quota is read while there is something to grade, in seconds.
LOOK_SECONDS = 0.5
# Grades leave CPU unused that use less than this share of the quota,
_UNUSED = 0.75
# and are too many if CPUs are refused to them for so many seconds a second, over all CPUs.
_REFUSED = 0.3


@dataclass(frozen=True, slots=True)
class Felt:
    """Since the last look: how many CPUs were used, for how many seconds a second CPUs were refused, and whether grades wait for others."""

    used: float
    refused: float
    waiting: bool


def at_once(processes: int, quota: float | None, before: int, felt: Felt | None) -> int:
    """How many grades run at once, given that it was `before`; `quota` is in CPUs, None without one. Pure.

    Without a quota all `processes` do. Otherwise one for each CPU of the quota, or part of one, and one at least: two grades on one CPU
    take twice as long each, which brings both nearer to their limits and nothing else. Grades that sleep or wait need no CPU, so one more
    runs for every look at which grades wait although those that run leave CPU unused; and one fewer, down to that rule, for every look
    at which CPUs were refused to them.
    """
    if quota is None:
        return processes
    least = min(max(math.ceil(quota), 1), processes)
    now = min(max(before, least), processes)
    if felt is None:
        return now
    if felt.refused > _REFUSED:
        return max(now - 1, least)
    return min(now + 1, processes) if felt.waiting and felt.used < _UNUSED * quota else now


class Quota:
    """Reads the quota of the container's cgroup below `root`; None reads nothing, so that all `processes` grade.

    `at_once` is how many grades run at once, `cpu_seconds` are those that the container has used, None without a quota: then others
    may use the same cgroup.
    """

    def __init__(self, processes: int, root: Path | None) -> None:
        self._processes, self._root = processes, root
        self._before: tuple[float, CpuUse] | None = None
        self.at_once = processes
        self.cpu_seconds: float | None = None
        quota = self._read()
        if quota is not None:
            self.at_once = at_once(processes, quota, 1, None)

    def look(self, waiting: bool) -> None:
        """Follows a quota that has changed, and what grades made of it. `waiting` says whether grades wait for others."""
        before = self._before
        quota = self._read()
        felt = None
        if before is not None and self._before is not None:
            seconds, use = self._before[0] - before[0], self._before[1]
            if seconds > 0:
                used, refused = use.seconds - before[1].seconds, use.refused - before[1].refused
                felt = Felt(used / seconds, refused / seconds, waiting)
        self.at_once = at_once(self._processes, quota, self.at_once, felt)

    def rest(self) -> None:
        """Nothing is graded from now on until the next look, which then says nothing about grades."""
        self._before = None

    def _read(self) -> float | None:
        quota = None if self._root is None else cpu_limit(self._root)
        use = None if self._root is None or quota is None else cpu_use(self._root)
        self._before = None if use is None else (time.monotonic(), use)
        self.cpu_seconds = None if use is None else use.seconds
        return quota
