"""What grades leave behind: processes that nobody waits for any more, and directories."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import signal
from collections.abc import Collection
from pathlib import Path

_INTERVAL = 1.0


async def reap_orphans(known: Collection[int]) -> None:
    """Kills and reaps children of this process that aren't `known`, such as programs of grades whose zygote died.

    Every second, until cancelled.
    """
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


def remove_tree(root: Path) -> None:
    """Removes a directory whose content may be made to prevent that: too deep for recursion or a path, or without permissions.

    Every directory found is moved to the top under a short name before it is looked into, so no path grows. Symbolic links
    are removed, never followed. Nobody may be writing there any more.
    """
    root.chmod(0o700)
    prefix = secrets.token_hex(8)
    found = [root]
    for directory in found:
        with os.scandir(directory) as entries:
            content = list(entries)
        for entry in content:
            path = Path(entry.path)
            if entry.is_dir(follow_symlinks=False):
                path.chmod(0o700)
                found.append(path.rename(root / f"{prefix}-{len(found)}"))
            else:
                path.unlink()
    for directory in reversed(found):
        directory.rmdir()
