"""Records whether a pod's driver has had an answer from the API server, for its agent and for later starts of the driver.

The record is a file of the pod, which outlives its containers: once a driver has had an answer, later ones wait outages out.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

FILE = Path(tempfile.gettempdir()) / "longboat-api-server"
_ANSWERED = "answered"


class Contact:
    """Reads and writes the file."""

    def __init__(self, file: Path = FILE) -> None:
        self._file = file

    @property
    def answered(self) -> bool:
        """Whether the API server has stored a driver's request for its number."""
        return self._text() == _ANSWERED

    def has_ended_for(self, cause: str) -> bool:
        """Whether a start has ended without an answer because of `cause`."""
        return _line(cause) in self._text().splitlines()

    def note_answer(self) -> None:
        """Notes the first answer."""
        self._file.write_text(_ANSWERED)

    def note_end(self, cause: str) -> None:
        """Notes that a start ends without an answer because of `cause`."""
        with self._file.open("a") as file:
            file.write(f"{_line(cause)}\n")

    def _text(self) -> str:
        try:
            return self._file.read_text()
        except FileNotFoundError:
            return ""


def _line(cause: str) -> str:
    return " ".join(cause.split())
