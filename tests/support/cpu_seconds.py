"""The CPU seconds of tests: recorded with `--record-cpu-seconds`, and read to tell which tests are slow.

A pytest plugin. CPU seconds say what a test costs on any machine; how long it takes also depends on what else runs there. They are those of
the process that runs the test and of all that it starts, orphans too, but for the pods of test clusters, which have control groups of their
own. What a fixture of a larger scope takes counts for every test that uses it, since each of them may be run alone.
"""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Generator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

RECORD = Path(__file__).parents[1] / "cpu_seconds.json"

# Tests above this are `slow`. All others together take less than two minutes of an idle core, the start of pytest included.
SLOW_SECONDS = 0.5

# Less than this is not recorded.
_LEAST_SECONDS = 0.2

_PROPERTY = "cpu_seconds"

# Where cgroup v2 is: alone, or beside v1.
_HIERARCHIES = (Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/unified"))


@dataclass(frozen=True)
class Cost:
    """CPU seconds of one test of a run, of the shared fixtures that it uses, and of ending those after its file's last test."""

    own: float
    fixtures: dict[str, float]
    ending: float


def recorded(record: Path = RECORD) -> dict[str, float]:
    """Reads the recorded CPU seconds by test id; tests of almost none are missing."""
    return json.loads(record.read_text()) if record.exists() else {}


def seconds_alone(costs: Mapping[str, Cost]) -> dict[str, float]:
    """Computes what each test would take if it ran alone: its own seconds and those of every shared fixture that it uses.

    A file's shared fixtures end after its last test, so that what this takes is divided among the tests of the file that use one.
    """
    starting: dict[str, dict[str, float]] = defaultdict(dict)
    ending: dict[str, float] = defaultdict(float)
    for test, cost in costs.items():
        file = test.partition("::")[0]
        for name, seconds in cost.fixtures.items():
            starting[file][name] = max(seconds, starting[file].get(name, 0.0))
        ending[file] += cost.ending
    return {
        test: cost.own + sum(starting[file][name] for name in cost.fixtures) + (ending[file] if cost.fixtures else 0.0)
        for test, cost in costs.items()
        for file in [test.partition("::")[0]]
    }


class Group:
    """A control group of this process and all that it starts, whose CPU seconds the kernel counts. Needs root and cgroup v2."""

    def __init__(self) -> None:
        self._hierarchy = next(path for path in _HIERARCHIES if (path / "cgroup.procs").exists())
        self._group = self._hierarchy / f"longboat-tests-{os.getpid()}"
        self._group.mkdir()
        (self._group / "cgroup.procs").write_text(str(os.getpid()))

    def cpu_seconds(self) -> float:
        """Counts what has been used since the group was made."""
        counters = dict(line.split() for line in (self._group / "cpu.stat").read_text().splitlines())
        return int(counters["usage_usec"]) / 1e6

    def close(self) -> None:
        """Removes the group; what still runs in it goes on outside."""
        for pid in (self._group / "cgroup.procs").read_text().split():
            with suppress(ProcessLookupError):
                (self._hierarchy / "cgroup.procs").write_text(pid)
        self._group.rmdir()


@dataclass(eq=False)
class Measurement:
    """Measures the tests of one process."""

    group: Group = field(default_factory=Group)
    begun: float = 0.0
    shared: float = 0.0
    ending: float = 0.0
    fixtures: dict[int, tuple[str, float]] = field(default_factory=dict)
    """Name and CPU seconds of each fixture of a larger scope that has been set up, by the identity of its definition."""

    def pytest_unconfigure(self) -> None:
        self.group.close()

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[Any]) -> Generator[None, object, object]:
        before = self.group.cpu_seconds()
        try:
            return (yield)
        finally:
            if fixturedef.scope != "function":
                seconds = self.group.cpu_seconds() - before
                self.fixtures[id(fixturedef)] = fixturedef.argname, seconds
                self.shared += seconds

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_setup(self) -> Generator[None, object, object]:
        self.begun, self.shared, self.ending = self.group.cpu_seconds(), 0.0, 0.0
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_teardown(
        self, item: pytest.Item, nextitem: pytest.Item | None
    ) -> Generator[None, object, object]:
        before = self.group.cpu_seconds()
        try:
            return (yield)
        finally:
            if nextitem is None or nextitem.path != item.path:
                self.ending = self.group.cpu_seconds() - before

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[None]) -> None:
        if call.when == "teardown":
            definitions = item._fixtureinfo.name2fixturedefs.values()  # type: ignore[attr-defined]
            used = [self.fixtures[id(each)] for every in definitions for each in every if id(each) in self.fixtures]
            own = self.group.cpu_seconds() - self.begun - self.shared - self.ending
            item.user_properties.append((_PROPERTY, json.dumps([own, dict(used), self.ending])))


@dataclass(eq=False)
class Writer:
    """Gathers what all processes have measured, and writes it down at the end of the run."""

    record: Path
    costs: dict[str, Cost] = field(default_factory=dict)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "teardown" and report.passed:
            for name, value in report.user_properties:
                if name == _PROPERTY:
                    self.costs[report.nodeid] = Cost(*json.loads(str(value)))

    def pytest_sessionfinish(self) -> None:
        files = {test.partition("::")[0] for test in self.costs}
        others = {
            test: seconds for test, seconds in recorded(self.record).items() if test.partition("::")[0] not in files
        }
        measured = {test: round(seconds, 1) for test, seconds in seconds_alone(self.costs).items()}
        kept = {test: seconds for test, seconds in measured.items() if seconds >= _LEAST_SECONDS}
        self.record.write_text(json.dumps(dict(sorted((others | kept).items())), indent=0) + "\n")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds `--record-cpu-seconds`."""
    text = f"write the CPU seconds of the tests of this run to FILE (default: tests/{RECORD.name})"
    option = {"nargs": "?", "const": RECORD, "metavar": "FILE", "type": Path}
    parser.getgroup("longboat").addoption("--record-cpu-seconds", help=text, **option)


def pytest_configure(config: pytest.Config) -> None:
    """Measures in each process that runs tests, and writes in the one that gathers their reports."""
    if record := config.getoption("--record-cpu-seconds"):
        config.pluginmanager.register(Measurement())
        if "PYTEST_XDIST_WORKER" not in os.environ:
            config.pluginmanager.register(Writer(record))
