"""The records of a job that a tracker doesn't have yet, read from the job's own files."""

from __future__ import annotations

from pathlib import Path

from longboat_runtime.checkpoint.layout import INCARNATIONS
from longboat_runtime.metrics.record import Record, read_record, read_records


class Superseded(Exception):
    """A later incarnation of the job has begun: it has trackers of its own."""


class Feed:
    """Gives each step's record once, in order, beyond the step `position`.

    Those of earlier incarnations come first: what they had no time to log, or everything, for a tracker that is new. A step that
    this incarnation repeats after it resumed from an older checkpoint isn't given again if the tracker has it: points can't be
    taken back. So a tracker shows a step as it was made first; the job's files have it as it was made last.
    """

    def __init__(self, root: Path, incarnation: int, position: int) -> None:
        self._root, self._incarnation, self.position = root, incarnation, position
        self._file = root / INCARNATIONS / str(incarnation) / "metrics.jsonl"
        self._offset: int | None = None

    def records(self) -> list[Record]:
        """The records since the last call. Raises Superseded, and OSError if the volume can't be read."""
        names = [path.name for path in (self._root / INCARNATIONS).iterdir()]
        if any(name.isdecimal() and int(name) > self._incarnation for name in names):
            raise Superseded
        if self._offset is None:
            if not self._file.exists():
                return []
            self._offset = _complete(self._file.read_bytes())
            found = read_records(self._root)
        else:
            with self._file.open("rb") as file:
                file.seek(self._offset)
                text = file.read()
            length = _complete(text)
            self._offset += length
            found = [read_record(line) for line in text[:length].decode().splitlines()]
        records = [record for record in found if record.step > self.position]
        if records:
            self.position = records[-1].step
        return records


def _complete(text: bytes) -> int:
    """How many bytes the complete lines have."""
    return text.rfind(b"\n") + 1
