"""CPUs and memory that this container's control group lets it use, and CPUs that it has used."""

from __future__ import annotations

from pathlib import Path

CGROUP_ROOT = Path("/sys/fs/cgroup")


def parse_cpu_max(text: str) -> float | None:
    """Reads the CPUs in cgroup v2's `cpu.max` ("200000 100000" or "max 100000"); None without a limit."""
    quota, period = text.split()
    return None if quota == "max" else int(quota) / int(period)


def parse_cfs(quota: str, period: str) -> float | None:
    """Reads the CPUs in cgroup v1's `cpu.cfs_quota_us` (-1: no limit) and `cpu.cfs_period_us`; None without a limit."""
    return None if int(quota) < 0 else int(quota) / int(period)


def cpu_limit(root: Path = CGROUP_ROOT) -> float | None:
    """Returns the CPUs that this container's cgroup lets it use; None: no known limit. A container sees its own cgroup as the root."""
    unified = root / "cpu.max"
    if unified.exists():
        return parse_cpu_max(unified.read_text())
    quota, period = root / "cpu" / "cpu.cfs_quota_us", root / "cpu" / "cpu.cfs_period_us"
    if quota.exists() and period.exists():
        return parse_cfs(quota.read_text(), period.read_text())
    return None


def memory_limit(root: Path = CGROUP_ROOT) -> int | None:
    """Returns the bytes of memory that this container's cgroup lets it use; None: no limit known from cgroup v2."""
    limit = root / "memory.max"
    text = limit.read_text().strip() if limit.exists() else "max"
    return None if text == "max" else int(text)


def cpu_seconds(root: Path = CGROUP_ROOT) -> float | None:
    """Returns the CPU seconds that this container has used, or None if its cgroup doesn't say."""
    stat, usage = root / "cpu.stat", root / "cpuacct" / "cpuacct.usage"
    if stat.exists():
        used = dict(line.split() for line in stat.read_text().splitlines())["usage_usec"]
        return int(used) / 1e6
    return int(usage.read_text()) / 1e9 if usage.exists() else None


def runnable(root: Path = CGROUP_ROOT, proc: Path = Path("/proc")) -> int:
    """Counts the threads of this container that run or wait for a CPU, those of this process aside."""
    unified = root / "cgroup.threads"
    threads = (unified if unified.exists() else root / "cpu" / "tasks").read_text().split()
    own = {path.name for path in (proc / "self" / "task").iterdir()}
    return sum(_state(proc / thread) == "R" for thread in threads if thread not in own)


def _state(thread: Path) -> str:
    try:
        # The name, in parentheses, may hold anything.
        return (thread / "stat").read_text(errors="replace").rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return ""  # It has ended.
