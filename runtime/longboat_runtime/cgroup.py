"""CPUs that this container's control group lets it use, and has used."""

from __future__ import annotations

from dataclasses import dataclass
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


@dataclass(frozen=True, slots=True)
class CpuUse:
    """CPU seconds that the container has used, and seconds for which CPUs were refused to it because of its limit, over all CPUs."""

    seconds: float
    refused: float


def parse_stat(text: str) -> dict[str, int]:
    """The numbers of a `cpu.stat`, by name."""
    return {name: int(value) for name, value in (line.split() for line in text.splitlines())}


def cpu_use(root: Path = CGROUP_ROOT) -> CpuUse | None:
    """What this container has used so far, or None if its cgroup doesn't say."""
    unified = root / "cpu.stat"
    if unified.exists():
        stat = parse_stat(unified.read_text())
        return CpuUse(stat["usage_usec"] / 1e6, stat.get("throttled_usec", 0) / 1e6)
    stat_file, usage = root / "cpu" / "cpu.stat", root / "cpuacct" / "cpuacct.usage"
    if stat_file.exists() and usage.exists():
        return CpuUse(int(usage.read_text()) / 1e9, parse_stat(stat_file.read_text())["throttled_time"] / 1e9)
    return None
