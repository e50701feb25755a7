"""Runs of many sittings: `--journal FILE` notes each test that passes, and the next run with the same file leaves it out.

A pytest plugin. `make test-faults` keeps a journal for each commit, so that what hours of faults have shown isn't shown again.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest


@dataclass(eq=False)
class Journal:
    """The tests that have passed, one id on each line of a file."""

    file: Path

    def passed(self) -> set[str]:
        return set(self.file.read_text().splitlines()) if self.file.exists() else set()

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        passed = self.passed()
        done = [item for item in items if item.nodeid in passed]
        config.hook.pytest_deselected(items=done)
        items[:] = [item for item in items if item.nodeid not in passed]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" and report.passed:
            self.file.parent.mkdir(parents=True, exist_ok=True)
            with self.file.open("a") as file:
                file.write(f"{report.nodeid}\n")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds `--journal`."""
    text = "note tests that pass in FILE, and leave out those that it has"
    parser.getgroup("longboat").addoption("--journal", metavar="FILE", type=Path, help=text)


def pytest_configure(config: pytest.Config) -> None:
    """Keeps the journal in a process that runs tests itself."""
    if file := config.getoption("--journal"):
        config.pluginmanager.register(Journal(file))
