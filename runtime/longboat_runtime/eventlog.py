"""A job's event log: one file of JSON lines per incarnation, durable up to the last `sync`.

Line 1 holds the ledger that the log continues from and where that came from: the incarnation and offset (bytes) in the manifest
that was resumed, or null. Anything that other incarnations wrote after that offset is dead.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from longboat_runtime.checkpoint.layout import INCARNATIONS
from longboat_runtime.rounds.events import Entry, LogEntry

LOG_NAME = "events.log"


@dataclass(frozen=True, slots=True)
class LogPosition:
    """The first `offset` bytes of an incarnation's log."""

    incarnation: int
    offset: int


def log_path(root: Path, incarnation: int) -> Path:
    """Returns the path of an incarnation's log; `root` is the checkpoint directory."""
    return root / INCARNATIONS / str(incarnation) / LOG_NAME


class EventLog:
    """Appends to a new log. Lines wait in memory until `sync`, so a failed write loses none.

    Raises FileExistsError if the incarnation already has a log: two drivers must never share a number.
    """

    def __init__(
        self, root: Path, incarnation: int, ledger: Mapping[str, Any], resumes: LogPosition | None = None
    ) -> None:
        path = log_path(root, incarnation)
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
        self._syncing = asyncio.Lock()
        self._pending: list[bytes] = []
        self._durable = self._end = 0
        self.incarnation = incarnation
        self._add({"log": 1, "resumes": asdict(resumes) if resumes else None, "ledger": ledger})

    @property
    def position(self) -> LogPosition:
        """The position after the last event, durable or not."""
        return LogPosition(self.incarnation, self._end)

    def append(self, entry: Entry) -> None:
        """Takes the entry; it is on disk after the next `sync`."""
        self._add(entry.to_json())

    async def sync(self) -> None:
        """Makes all events taken so far durable, in another thread.

        Raises OSError (such as ENOSPC) without losing anything: the file is truncated to its durable part, and a later call retries.
        """
        async with self._syncing:
            lines = list(self._pending)
            data = b"".join(lines)
            await asyncio.to_thread(self._write, data)
            self._durable += len(data)
            del self._pending[: len(lines)]

    def close(self) -> None:
        """Closes the file; events that were not synced are lost."""
        os.close(self._file)

    def _add(self, value: dict[str, Any]) -> None:
        line = json.dumps(value, separators=(",", ":")).encode() + b"\n"
        self._pending.append(line)
        self._end += len(line)

    def _write(self, data: bytes) -> None:
        try:
            written = 0
            while written < len(data):
                written += os.pwrite(self._file, data[written:], self._durable + written)
            os.fsync(self._file)
        except OSError:
            os.ftruncate(self._file, self._durable)
            raise


def surviving(root: Path, position: LogPosition) -> Iterator[Entry]:
    """Yields all entries that led to `position`, oldest first, over the incarnations of this job."""
    positions = [position]
    while resumes := _resumed(root, positions[-1].incarnation):
        positions.append(LogPosition(**resumes))
    for part in reversed(positions):
        with log_path(root, part.incarnation).open("rb") as file:
            _, *lines = file.read(part.offset).split(b"\n")[:-1]
        yield from (LogEntry.from_json(json.loads(line)) for line in lines)


def end_of(root: Path, incarnation: int) -> LogPosition:
    """Returns the end of an incarnation's log, without a torn last line (from a crash while it was written)."""
    data = log_path(root, incarnation).read_bytes()
    return LogPosition(incarnation, data.rfind(b"\n") + 1)


def newest(root: Path) -> LogPosition | None:
    """Returns the end of the newest log in a job's directory, or None without one. A log without a complete first line is passed over."""
    numbers = [int(path.name) for path in (root / INCARNATIONS).glob("*") if path.name.isdecimal()]
    logs = [number for number in sorted(numbers, reverse=True) if log_path(root, number).is_file()]
    return next((end for end in (end_of(root, number) for number in logs) if end.offset), None)


def read_log(root: Path) -> Iterator[Entry]:
    """Yields the entries in a job's directory that its newest log continues from, and then its own, oldest first.

    Raises ValueError, with a message for people, if there is no log or a part of it can't be read.
    """
    try:
        end = newest(root)
        if end is not None:
            yield from surviving(root, end)
            return
    except OSError as error:
        raise ValueError(f"{error.filename}: {error.strerror}; the event log can't be read") from error
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"a log below {root / INCARNATIONS} is damaged: {error}") from error
    raise ValueError(
        f"no events in {root / INCARNATIONS}/*/{LOG_NAME}; give the directory that `longboat run` wrote (--output), or the "
        "job's directory on its checkpoint claim"
    )


def _resumed(root: Path, incarnation: int) -> dict[str, int] | None:
    with log_path(root, incarnation).open("rb") as file:
        resumes: dict[str, int] | None = json.loads(file.readline())["resumes"]
    return resumes
