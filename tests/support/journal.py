"""Resumes interrupted runs: `--journal FILE` records each test that passes, and the next run with that file leaves it out.

This is a pytest plugin. `make test-faults` keeps a journal for each commit, so that hours of faults aren't repeated.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import pytest


@dataclass(eq=False)
class Journal:
    """Keeps the ids of passed tests in a file, one on each line."""

    file: Path
    passed: set[str] = field(default_factory=set)
    """Tests of earlier runs and of this one."""
    _called: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        if self.file.exists():
            self.passed |= set(self.file.read_text().splitlines())

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        done = [item for item in items if item.nodeid in self.passed]
        config.hook.pytest_deselected(items=done)
        items[:] = [item for item in items if item.nodeid not in self.passed]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Records a test once its fixtures are torn down. If that fails, all tests of its file run again: they may share those fixtures."""
        if report.when == "call" and report.passed:
            self._called.add(report.nodeid)
        elif report.when == "teardown" and report.passed and report.nodeid in self._called:
            self.passed.add(report.nodeid)
        elif report.when == "teardown" and report.failed:
            file = report.nodeid.partition("::")[0]
            self.passed = {test for test in self.passed if test.partition("::")[0] != file}
        else:
            return
        self.file.parent.mkdir(parents=True, exist_ok=True)
        self.file.write_text("".join(f"{test}\n" for test in sorted(self.passed)))


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds `--journal`."""
    text = "record passed tests in FILE, and leave out those that it lists"
    parser.getgroup("longboat").addoption("--journal", metavar="FILE", type=Path, help=text)


def pytest_configure(config: pytest.Config) -> None:
    """Registers the journal if `--journal` is given."""
    if file := config.getoption("--journal"):
        config.pluginmanager.register(Journal(file))
