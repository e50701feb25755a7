"""How many threads torch may use: what the container's CPU quota and the process's affinity allow."""

from __future__ import annotations

import os
from pathlib import Path

CGROUP_ROOT = Path("/sys/fs/cgroup")


def thread_count(quota: float | None, affinity: int) -> int:
    """Whole CPUs of the quota (None: unlimited), at most those the process may run on, at least one.

    More threads than the quota holds get throttled together: all wait for the next period whenever one has used it up.
    """
    return max(1, min(affinity, int(quota) if quota is not None else affinity))


def parse_cpu_max(text: str) -> float | None:
    """CPUs in cgroup v2's `cpu.max` ("200000 100000" or "max 100000")."""
    quota, period = text.split()
    return None if quota == "max" else int(quota) / int(period)


def parse_cfs(quota: str, period: str) -> float | None:
    """CPUs in cgroup v1's `cpu.cfs_quota_us` (-1: no limit) and `cpu.cfs_period_us`."""
    return None if int(quota) < 0 else int(quota) / int(period)


def cpu_quota(root: Path = CGROUP_ROOT) -> float | None:
    """CPUs this container may use by its cgroup, or None if there's no limit. A container sees its own cgroup as the root."""
    unified = root / "cpu.max"
    if unified.exists():
        return parse_cpu_max(unified.read_text())
    quota, period = root / "cpu" / "cpu.cfs_quota_us", root / "cpu" / "cpu.cfs_period_us"
    if quota.exists() and period.exists():
        return parse_cfs(quota.read_text(), period.read_text())
    return None


def available_threads() -> int:
    """Threads for this process, now."""
    return thread_count(cpu_quota(), len(os.sched_getaffinity(0)))
