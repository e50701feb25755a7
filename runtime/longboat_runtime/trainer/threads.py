"""Computes how many threads torch may use: what the container's CPU quota and the process's affinity allow."""

from __future__ import annotations

import os

from longboat_graders.cgroup import cpu_limit


def thread_count(quota: float | None, affinity: int, ranks: int = 1) -> int:
    """Returns a rank's share of the whole CPUs in the quota (None: unlimited), and of those that the process may run on; at least one.

    `ranks` share them. More threads than the quota holds get throttled together: once they have used it up, all wait for the next period.
    """
    return max(1, min(affinity, int(quota) if quota is not None else affinity) // ranks)


def available_threads(ranks: int) -> int:
    """Returns how many threads this process may use now, as one of the `ranks` of its pod."""
    return thread_count(cpu_limit(), len(os.sched_getaffinity(0)), ranks)
