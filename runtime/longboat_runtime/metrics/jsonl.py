"""Records as JSON lines: always on disk, for scripts."""

from __future__ import annotations

from pathlib import Path

from longboat_runtime.metrics.record import Record


class JsonLines:
    """Appends a line a record; each is handed to the kernel at once."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("a", encoding="utf-8", buffering=1)

    def write(self, record: Record) -> None:
        self._file.write(record.to_line() + "\n")

    def close(self) -> None:
        self._file.close()
