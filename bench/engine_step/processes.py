"""Where a job's CPU seconds go: by process and, sampled by py-spy, by function."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")
# What a process is, by what its command line contains; the first that is found.
_NAMES = {
    "ray::TimedActor": "engine",
    "ray::RewardWorker": "reward worker",
    "ray::SampleStore": "sample store",
    "ray::Trainer": "trainer",
    "ray::": "other Ray workers",
    "graders.zygote": "graders' children and zygotes",
    "graders": "graders' server",
    "raylet": "raylet",
    "gcs_server": "Ray's GCS",
    "bench.run": "driver",
}


def cpu_seconds(root: int) -> dict[int, tuple[str, float]]:
    """Reads the name and the user and system seconds of `root` and of each process below it, by process id.

    What children used that ended and were waited for counts for a parent other than `root`.
    """
    parents, usage = {}, {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
            command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
        except OSError:
            continue
        parents[int(entry.name)] = int(fields[1])
        own_and_children = fields[11:13] if int(entry.name) == root else fields[11:15]
        usage[int(entry.name)] = (_name(command), sum(map(int, own_and_children)) / _TICKS)
    return {pid: value for pid, value in usage.items() if _below(pid, root, parents)}


def used(before: Mapping[int, tuple[str, float]], after: Mapping[int, tuple[str, float]]) -> dict[str, float]:
    """Computes the CPU seconds between two readings, by process name; of processes that are in the second one."""
    total: Counter[str] = Counter()
    for pid, (name, seconds) in after.items():
        total[name] += seconds - before.get(pid, (name, 0.0))[1]
    return dict(total)


def _name(command: str) -> str:
    return next(
        (name for part, name in _NAMES.items() if part in command), Path(command.split(" ", 1)[0]).name or "kernel"
    )


def _below(pid: int, root: int, parents: Mapping[int, int]) -> bool:
    while pid not in (root, 0, 1):
        pid = parents.get(pid, 0)
    return pid == root


class Profile:
    """Samples processes with py-spy until `stop`: stacks of threads that use a CPU."""

    def __init__(self, pids: Mapping[int, str]) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="longboat-bench-")
        self._names = dict(pids)
        self._running = {pid: self._sample(pid) for pid in pids}

    def _sample(self, pid: int) -> subprocess.Popen[bytes]:
        command = ["py-spy", "record", "--nonblocking", "--rate", "50", "--duration", "unlimited", "--format", "raw"]
        return subprocess.Popen(
            [*command, "--pid", str(pid), "--output", str(self._file(pid))],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def _file(self, pid: int) -> Path:
        return Path(self._folder.name) / str(pid)

    def stop(self) -> dict[str, dict[str, int]]:
        """Ends the sampling; returns the samples by process name and innermost function, for the 25 most frequent functions of each."""
        profiles: dict[str, Counter[str]] = {}
        for pid, process in self._running.items():
            process.send_signal(2)
            process.wait()
            if self._file(pid).exists():
                profiles.setdefault(self._names[pid], Counter()).update(
                    innermost(self._file(pid).read_text().splitlines())
                )
        self._folder.cleanup()
        return {name: dict(counted.most_common(25)) for name, counted in profiles.items()}


def innermost(stacks: Sequence[str]) -> Counter[str]:
    """Counts the innermost functions of stacks in py-spy's raw format, `outer;...;inner count`."""
    counted: Counter[str] = Counter()
    for line in stacks:
        stack, _, count = line.rpartition(" ")
        counted[stack.rpartition(";")[2]] += int(count)
    return counted
