"""Which tests each tier runs: marks that follow from the recorded CPU seconds and from the quarantine.

A pytest plugin. `make test-fast` leaves out what is `slow`, `make test` what is `extended`, `make test-all` the `faults`.
"""

from __future__ import annotations

import datetime
import os
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.cpu_seconds import SLOW_SECONDS, recorded

QUARANTINE = Path(__file__).parents[1] / "quarantine.txt"

# More tests than this are not mended one after the other.
MOST_QUARANTINED = 5


@dataclass(frozen=True)
class Quarantined:
    """A test that failed without a cause in the change under test, and is being mended."""

    test: str
    since: datetime.date
    message: str


def quarantined(text: str) -> list[Quarantined]:
    """Reads `tests/quarantine.txt`: a test on each line, as id, date and message of the failure, separated by tabs.

    Raises pytest.UsageError for a line that isn't so, and for more tests than `MOST_QUARANTINED`.
    """
    entries = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        parts = [part.strip() for part in line.split("\t")]
        try:
            test, since, message = parts
            entries.append(Quarantined(test, datetime.date.fromisoformat(since), message))
        except ValueError:
            expected = "expected the test's id, a date (2026-11-27) and the message, separated by tabs"
            raise pytest.UsageError(f"{QUARANTINE.name} line {number}: {expected}; got {line!r}") from None
    if len(entries) > MOST_QUARANTINED:
        raise pytest.UsageError(
            f"{QUARANTINE.name}: {len(entries)} tests, {MOST_QUARANTINED} at most: mend one before another is added"
        )
    return entries


def mark(items: Iterable[pytest.Item], seconds: dict[str, float], entries: list[Quarantined]) -> None:
    """Marks tests of many CPU seconds as `slow`, and those in quarantine as `extended`."""
    tests = {entry.test for entry in entries}
    for item in items:
        if seconds.get(item.nodeid, 0.0) > SLOW_SECONDS:
            item.add_marker("slow")
        if item.nodeid in tests:
            item.add_marker("extended")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks all tests before any are selected by their marks, and lets workers begin with the files that take longest.

    A worker that got one of those last would keep the others waiting for it.
    """
    seconds = recorded()
    mark(items, seconds, quarantined(QUARANTINE.read_text()))
    if "PYTEST_XDIST_WORKER" in os.environ:
        files: Counter[Path] = Counter()
        for item in items:
            files[item.path] += seconds.get(item.nodeid, 0.0)
        items.sort(key=lambda item: -files[item.path])
