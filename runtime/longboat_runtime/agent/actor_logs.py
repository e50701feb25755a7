"""Copies what actors print from Ray's files to the container's log."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from pathlib import Path
from typing import TextIO

_INTERVAL = 1.0
# At most this many bytes of a file are read at a time; the rest is read the next time.
_ROUND_BYTES = 1 << 20


class ActorLogs:
    """Follows `worker-*.out` and `worker-*.err` of Ray's session, whichever session that is now.

    Ray names the files `worker-ID-JOB-PID`; lines are printed with the actor's pid before them. Files that are there when this
    is made are read from their end, so nothing is printed twice after the agent has restarted.
    """

    def __init__(self, temp_dir: Path = Path("/tmp/ray"), to: TextIO = sys.stdout) -> None:  # noqa: S108 - Ray's own
        self._logs = temp_dir / "session_latest" / "logs"
        self._to = to
        self._read: dict[Path, int] = {path: path.stat().st_size for path in self._files()}

    async def follow(self) -> None:
        """Prints new lines every second, until cancelled."""
        while True:
            await asyncio.to_thread(self.print_new)
            await asyncio.sleep(_INTERVAL)

    def print_new(self) -> None:
        """Prints the whole lines that have been written and not printed, in at most _ROUND_BYTES of each file; a longer line in parts."""
        for path in self._files():
            with contextlib.suppress(FileNotFoundError):
                self._print_new_of(path)
        self._to.flush()

    def _files(self) -> list[Path]:
        """Lists the logs by their real paths: a new session has the same names below `session_latest`."""
        if not self._logs.is_dir():
            return []
        logs = self._logs.resolve()
        return sorted(path for path in logs.glob("worker-*") if path.suffix in (".out", ".err"))

    def _print_new_of(self, path: Path) -> None:
        with path.open("rb") as file:
            file.seek(self._read.get(path, 0))
            data = file.read(_ROUND_BYTES)
        end = data.rfind(b"\n") + 1 or (len(data) if len(data) == _ROUND_BYTES else 0)
        self._read[path] = self._read.get(path, 0) + end
        pid = path.stem.rpartition("-")[2]
        for line in data[:end].decode(errors="replace").splitlines():
            # Ray's own first line, for its log monitor.
            if not line.startswith((":job_id:", ":actor_name:", ":task_name:")):
                self._to.write(f"(pid={pid}) {line}\n")
