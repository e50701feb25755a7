"""The outcome of a check."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Verdict(StrEnum):
    """`NOTE` works, but slower or less safely than it could; `SKIPPED` doesn't concern this place."""

    OK = "ok"
    NOTE = "note"
    WRONG = "wrong"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class Finding:
    """Says in a line what a `check` found. `cure` is another line, if something is wrong or worth a note."""

    check: str
    verdict: Verdict
    text: str
    cure: str = ""


def ok(check: str, text: str) -> Finding:
    """Makes the finding that all is well."""
    return Finding(check, Verdict.OK, text)


def skipped(check: str, text: str) -> Finding:
    """Makes the finding that the check doesn't concern this place."""
    return Finding(check, Verdict.SKIPPED, text)


def note(check: str, text: str, cure: str) -> Finding:
    """Makes the finding that something works, but could be better."""
    return Finding(check, Verdict.NOTE, text, cure)


def wrong(check: str, text: str, cure: str) -> Finding:
    """Makes the finding that something has to be changed."""
    return Finding(check, Verdict.WRONG, text, cure)


def size(count: float) -> str:
    """Returns a number of bytes in words."""
    return f"{count / 2**30:.1f} GiB" if count >= 2**30 else f"{count / 2**20:.0f} MiB"
