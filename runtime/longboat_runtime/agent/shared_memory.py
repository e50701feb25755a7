"""Removes what killed engines leave behind in /dev/shm: named segments and semaphores that nobody else unlinks."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

import structlog

from longboat_runtime.weights import handover_files

log = structlog.get_logger()

# Python's shared memory and semaphores, vLLM's message queues.
_NAMES = re.compile(r"^(psm_|sem\.mp-|vllm_dist_)")
# A segment is made before it is mapped; one younger than this is left alone (seconds).
_LEAST_AGE = 30.0


@dataclass(frozen=True, slots=True)
class Segment:
    """A file in the shared memory directory; `age` in seconds."""

    name: str
    age: float
    inode: int


def leftovers(segments: Iterable[Segment], mapped: Collection[int]) -> list[str]:
    """Returns the names of segments of our kinds that are neither `mapped` (inodes) nor so young that they may yet be.

    Names wouldn't do: a semaphore is mapped under another one, from which its own is linked. The process that made it keeps it mapped
    while another one is started that opens it by name.
    """
    return [s.name for s in segments if _NAMES.match(s.name) and s.age >= _LEAST_AGE and s.inode not in mapped]


def sweep(directory: Path, *, everything: bool = False, now: float | None = None) -> list[str]:
    """Removes leftovers and returns their names. `everything`: all processes that could have made one are dead.

    `now` is in seconds since 1970, the current time unless given.
    """
    now = time.time() if now is None else now
    segments = []
    for path in directory.iterdir():
        with contextlib.suppress(FileNotFoundError):
            status = path.stat()
            segments.append(Segment(path.name, float("inf") if everything else now - status.st_ctime, status.st_ino))
    if not leftovers(segments, ()):
        return []
    removed = leftovers(segments, () if everything else _mapped(directory))
    for name in removed:
        (directory / name).unlink(missing_ok=True)
    if removed:
        log.info("swept shared memory", files=len(removed))
    return removed


def sweep_buckets(directory: Path) -> list[str]:
    """Removes the files by which dead engines handed weights to their workers, and returns their names.

    Each is as large as a bucket. The next engine would remove them, but Ray's node starts first: where /dev/shm has less room than the
    store is to have, Ray puts it below /tmp, or refuses to start.
    """
    removed = [path.name for path in handover_files.sweep(directory)]
    if removed:
        log.info("swept buckets of dead engines", files=len(removed))
    return removed


def _mapped(directory: Path) -> set[int]:
    """Returns the inodes of files of `directory` that are mapped by processes whose maps this one may read."""
    inodes: set[int] = set()
    prefix = f"{directory}/"
    for process in Path("/proc").iterdir():
        if not process.name.isdigit():
            continue
        with contextlib.suppress(OSError):
            maps = (process / "maps").read_text()
            inodes |= {int(line.split(maxsplit=5)[4]) for line in maps.splitlines() if f" {prefix}" in line}
    return inodes
