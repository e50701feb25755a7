"""A bucket as a file, for workers that are processes of their own: in shared memory, if there is room."""

from __future__ import annotations

import itertools
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from longboat_runtime.weights.bucket import Bucket

SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - the point is shared memory
PREFIX = "longboat-weights-"

_numbers = itertools.count()


@contextmanager
def handed_over(bucket: Bucket) -> Iterator[str]:
    """Yields the path of a file with the bucket's bytes; it is removed on leaving (maps that workers still hold stay valid)."""
    path = _directory(len(bucket.data)) / f"{PREFIX}{os.getpid()}-{next(_numbers)}"
    try:
        with path.open("xb") as file:
            file.write(bucket.data.data)
        yield str(path)
    finally:
        path.unlink(missing_ok=True)


def sweep() -> list[Path]:
    """Removes the files of processes whose numbers are not in use here, and returns them. For use before the first is handed over.

    A file with this process's own number is of one before: numbers recur when a container restarts, and shared memory stays.
    """
    own, remaining = str(os.getpid()), []
    for path in itertools.chain(*(directory.glob(f"{PREFIX}*") for directory in _directories())):
        process = path.name.removeprefix(PREFIX).split("-")[0]
        if process == own or not Path("/proc", process).exists():
            path.unlink(missing_ok=True)
            remaining.append(path)
    return remaining


def _directories() -> tuple[Path, Path]:
    return SHARED_MEMORY, Path(tempfile.gettempdir())


def _directory(nbytes: int) -> Path:
    shared, temporary = _directories()
    return shared if shutil.disk_usage(shared).free > nbytes else temporary
