"""All processes that come from this one: the child, what it started, and orphans that the kernel has handed over."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path


def descendants() -> set[int]:
    """Process ids of all living descendants, zombies among them."""
    found: set[int] = set()
    pending = [os.getpid()]
    while pending:
        new = children(pending.pop()) - found
        found |= new
        pending += new
    return found


def children(pid: int) -> set[int]:
    """Children of all threads of a process; empty if it is gone."""
    found: set[int] = set()
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            found |= {int(child) for child in (task / "children").read_text().split()}
    return found


def kill_descendants() -> set[int]:
    """Kills all descendants; returns those there were. One that is being forked may escape: call again until there are none."""
    found = descendants()
    for pid in found:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return found


def description(pid: int) -> str:
    """Id, name and state of a process (proc(5)), such as `17 python (state D)`; just the id if it is gone."""
    with contextlib.suppress(OSError):
        name, _, rest = Path(f"/proc/{pid}/stat").read_text().partition("(")[2].rpartition(")")
        return f"{pid} {name} (state {rest.split()[0]})"
    return str(pid)
