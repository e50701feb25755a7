"""CPUs that this container's control group lets it use."""

from __future__ import annotations

from pathlib import Path

CGROUP_ROOT = Path("/sys/fs/cgroup")


def parse_cpu_max(text: str) -> float | None:
    """CPUs in cgroup v2's `cpu.max` ("200000 100000" or "max 100000")."""
    quota, period = text.split()
    return None if quota == "max" else int(quota) / int(period)


def parse_cfs(quota: str, period: str) -> float | None:
    """CPUs in cgroup v1's `cpu.cfs_quota_us` (-1: no limit) and `cpu.cfs_period_us`."""
    return None if int(quota) < 0 else int(quota) / int(period)


def cpu_limit(root: Path = CGROUP_ROOT) -> float | None:
    """CPUs this container's cgroup lets it use, or None if there's no limit. A container sees its own cgroup as the root."""
    unified = root / "cpu.max"
    if unified.exists():
        return parse_cpu_max(unified.read_text())
    quota, period = root / "cpu" / "cpu.cfs_quota_us", root / "cpu" / "cpu.cfs_period_us"
    if quota.exists() and period.exists():
        return parse_cfs(quota.read_text(), period.read_text())
    return None
