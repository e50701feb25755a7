"""Processes of this machine, by id."""

import os
import signal
from pathlib import Path

from e2e.cluster import cgroups
from e2e.cluster.waiting import wait_until


def command_line(pid: int) -> list[str]:
    """Reads the words of a process's command line; none once it has ended, reaped or not, and briefly while it execs."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except (FileNotFoundError, ProcessLookupError):
        return []
    return [word.decode(errors="replace") for word in words[:-1]]


def find(command: list[str], group: str) -> list[int]:
    """Returns the ids of processes in and below a control group whose command line ends with this one, as `setsid COMMAND` does too."""
    return [pid for pid in cgroups.processes(group) if command_line(pid)[-len(command) :] == command]


def kill(pid: int) -> None:
    """Kills a process and waits until it has ended and let go of its ports."""
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not runs(pid), f"process {pid} does not end after SIGKILL", seconds=120)


def runs(pid: int) -> bool:
    """Whether any thread of a process has not ended: its command line is gone before its files and ports are."""
    try:
        ended = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
        return not ended or len(list(Path(f"/proc/{pid}/task").iterdir())) > 1
    except (FileNotFoundError, ProcessLookupError):
        return False
