"""Files of a checkpoint as its manifest describes them, and what a process reads."""

from __future__ import annotations

from pathlib import Path

from longboat_runtime.checkpoint.files import describe
from longboat_runtime.checkpoint.manifest import FileEntry


def described(directory: Path) -> tuple[FileEntry, ...]:
    """Describes all files in a directory, as they are now."""
    return describe(directory, [path.name for path in directory.iterdir()])


def bytes_read() -> int:
    """Counts what this process has read from files so far, from the system's cache or not."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return int(dict(line.split(": ") for line in lines)["rchar"])
