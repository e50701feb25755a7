"""Marks tests for the tiers, by the recorded CPU seconds and the quarantine.

This is a pytest plugin. `make test-fast` leaves out what is `slow`, `make test` what is `extended`, `make test-all` the `faults`.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Container, Iterable
from pathlib import Path

import pytest

from tests.support.cpu_seconds import recorded

QUARANTINE = Path(__file__).parents[1] / "quarantine.txt"

# Nobody would ever work through a longer list.
MOST_QUARANTINED = 5

_ENTRY = re.compile(r"([^\t]+)\t\d{4}-\d\d-\d\d\t[^\t]+")


def quarantined(text: str) -> list[str]:
    """Reads the ids in `tests/quarantine.txt`: a test on each line, as id, date and message of the failure, separated by tabs.

    Raises pytest.UsageError for a malformed line, and for more tests than `MOST_QUARANTINED`.
    """
    tests = []
    for number, line in enumerate(text.splitlines(), 1):
        if line and not line.startswith("#"):
            entry = _ENTRY.fullmatch(line)
            if entry is None:
                expected = "expected the test's id, a date (2026-11-27) and the message, separated by tabs"
                raise pytest.UsageError(f"{QUARANTINE.name} line {number}: {expected}; got {line!r}")
            tests.append(entry[1])
    if len(tests) > MOST_QUARANTINED:
        raise pytest.UsageError(
            f"{QUARANTINE.name}: {len(tests)} tests, {MOST_QUARANTINED} at most: fix one before you add another"
        )
    return tests


def mark(items: Iterable[pytest.Item], slow: Container[str], in_quarantine: Container[str]) -> None:
    """Marks tests of many CPU seconds as `slow`, and those in quarantine as `extended`."""
    for item in items:
        if item.nodeid in slow:
            item.add_marker("slow")
        if item.nodeid in in_quarantine:
            item.add_marker("extended")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks all tests before any are selected by their marks, and lets workers begin with what takes longest.

    A worker that got one of those last would keep the others waiting. Tests on clusters come first: many files share one cluster, and they
    mostly wait.
    """
    seconds = recorded()
    mark(items, seconds, quarantined(QUARANTINE.read_text()))
    if "PYTEST_XDIST_WORKER" in os.environ:
        files: Counter[Path] = Counter()
        for item in items:
            files[item.path] += seconds.get(item.nodeid, 0.0)
        items.sort(key=lambda item: (item.get_closest_marker("cluster") is None, -files[item.path]))
