"""Processes that nobody waits for any more, such as programs of grades whose zygote died."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Collection
from pathlib import Path

_INTERVAL = 1.0


async def reap(known: Collection[int]) -> None:
    """Kills and reaps children of this process that aren't `known`, every second, until cancelled."""
    while True:
        await asyncio.sleep(_INTERVAL)
        for pid in children().difference(known):
            _end(pid)


def _end(pid: int) -> None:
    """Kills a child and reaps it if it has ended by now; else the next round does."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)


def children() -> set[int]:
    """Children of all threads of this process, adopted ones included."""
    tasks = Path("/proc/self/task")
    return {int(pid) for task in tasks.iterdir() for pid in (task / "children").read_text().split()}
