"""The kinds of rounds."""

from __future__ import annotations

from enum import StrEnum


class RoundKind(StrEnum):
    """The two kinds of round: short rounds leave long responses to long rounds."""

    SHORT = "Short"
    LONG = "Long"
