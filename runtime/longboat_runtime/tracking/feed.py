"""The records and samples of a job that a tracker doesn't have yet, read from the job's own files."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from longboat_runtime.checkpoint.layout import INCARNATIONS
from longboat_runtime.metrics.record import Record, read_record, read_records
from longboat_runtime.sample_files.contents import is_due
from longboat_runtime.sample_files.reading import FileDamaged, read_file, read_files

# How long a record waits for the file with its step's samples, in seconds since it was made.
SAMPLES_SECONDS = 15.0
# Bounds of a table: a file may have more and longer samples.
MOST_SAMPLES, MOST_CHARACTERS = 1000, 16_384
COLUMNS = (
    "step", "domain", "epoch", "row", "attempt", "sample", "fate", "reason", "score", "parts", "advantage",
    "response_tokens", "finish_reason", "prompt", "response",
)  # fmt: skip


class Superseded(Exception):
    """A later incarnation of the job has begun: it has trackers of its own."""


@dataclass(frozen=True, slots=True)
class SampleTable:
    """Samples of one step, as rows with a value for each of `columns`."""

    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]


@dataclass(frozen=True, slots=True)
class Entry:
    """Holds what a tracker logs of one step."""

    record: Record
    samples: SampleTable | None = None


class Feed:
    """Gives each step's entry once, in order, beyond the step `position`.

    Those of earlier incarnations come first: what they had no time to log, or everything, for a tracker that is new. A step that
    this incarnation repeats after it resumed from an older checkpoint isn't given again if the tracker has it: points can't be
    taken back. So a tracker shows a step as it was made first; the job's files have it as it was made last. `spec` is the job's, as
    JSON values.
    """

    def __init__(self, root: Path, incarnation: int, position: int, spec: Mapping[str, Any]) -> None:
        self._root, self._incarnation, self._spec = root, incarnation, spec
        self._file = root / INCARNATIONS / str(incarnation) / "metrics.jsonl"
        self._offset: int | None = None
        self._read, self._waiting = position, list[Record]()

    @property
    def caught_up(self) -> bool:
        """Whether this incarnation has begun, and everything before was given."""
        return self._offset is not None and not self._waiting

    def entries(self, *, ended: bool = False) -> Iterator[Entry]:
        """Yields the entries recorded since the last call; nothing before this incarnation has its file.

        Unless the job has `ended`, a step waits for samples that are due, and later steps with it, until its record is SAMPLES_SECONDS
        old. Raises Superseded, and OSError if the volume can't be read.
        """
        self._waiting += self._records()
        files = read_files(self._root) if self._waiting and "samples" in self._spec else {}
        while self._waiting:
            record = self._waiting[0]
            samples = _table(files[record.step]) if record.step in files else None
            if samples is None and self._samples_are_due(record) and not ended:
                return
            del self._waiting[0]
            yield Entry(record, samples)

    def _records(self) -> list[Record]:
        names = [path.name for path in (self._root / INCARNATIONS).iterdir()]
        if any(name.isdecimal() and int(name) > self._incarnation for name in names):
            raise Superseded
        if self._offset is None:
            if not self._file.exists():
                return []
            self._offset = _complete(self._file.read_bytes())
            recorded = read_records(self._root)
        else:
            with self._file.open("rb") as file:
                file.seek(self._offset)
                text = file.read()
            length = _complete(text)
            self._offset += length
            recorded = [read_record(line) for line in text[:length].decode().splitlines()]
        records = [record for record in recorded if record.step > self._read]
        if records:
            self._read = records[-1].step
        return records

    def _samples_are_due(self, record: Record) -> bool:
        """Whether the file of this step may still come."""
        if "samples" not in self._spec or record.step == 0 or time.time() - record.time > SAMPLES_SECONDS:
            return False
        return is_due(record.step, self._spec["rounds"]["steps"], self._spec["samples"]["everySteps"])


def _table(file: Path) -> SampleTable | None:
    """Reads the samples of a file, as many and as long as a table may have; None if the file has none or is damaged."""
    rows: list[list[Any]] = []
    try:
        for sample in read_file(file):
            rows.append([_cell(sample[name]) for name in COLUMNS])
            if len(rows) >= MOST_SAMPLES:
                break
    except FileDamaged:
        return None
    return SampleTable(COLUMNS, rows) if rows else None


def _cell(value: Any) -> Any:
    """Returns a value as a table has it: an object as JSON, a text of at most MOST_CHARACTERS."""
    if isinstance(value, Mapping):
        return json.dumps(value)
    return value[:MOST_CHARACTERS] if isinstance(value, str) else value


def _complete(text: bytes) -> int:
    """Counts the bytes of the complete lines."""
    return text.rfind(b"\n") + 1
