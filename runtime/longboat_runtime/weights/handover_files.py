"""Names of the files in /dev/shm by which buckets reach an engine's workers, and removal of those that dead engines leave.

The agent imports this, so it imports nothing large.
"""

from __future__ import annotations

import os
from pathlib import Path

from longboat_runtime.object_store import SHARED_MEMORY

# Followed by the id of the engine's process and "-".
PREFIX = "longboat-weights-"


def sweep(directory: Path = SHARED_MEMORY) -> list[Path]:
    """Removes the files of processes that no longer exist, and returns them. Call it before this process writes its first.

    A file with this process's own id was left by an earlier one: ids recur when a container restarts, and shared memory stays.
    """
    own, removed = str(os.getpid()), []
    for path in directory.glob(f"{PREFIX}*"):
        process = path.name.removeprefix(PREFIX).split("-")[0]
        if process == own or not Path("/proc", process).exists():
            path.unlink(missing_ok=True)
            removed.append(path)
    return removed
