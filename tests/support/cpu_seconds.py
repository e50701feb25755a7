"""Records the CPU seconds of tests with `--record-cpu-seconds`, and reads them to tell which tests are slow.

This is a pytest plugin. CPU seconds say what a test costs on any machine; how long it takes also depends on what else runs there. They cover the
process that runs the test and all that it starts, orphans too. The CPU seconds of a fixture of a larger scope count for every test that uses
it, since each of them may be run alone.
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
SLOW_SECONDS = 0.12

_PROPERTY = "cpu_seconds"

# Where cgroup v2 is mounted: alone, or beside v1.
HIERARCHIES = (Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/unified"))


@dataclass(frozen=True)
class Cost:
    """Holds the CPU seconds of a test, of the shared fixtures that it uses, and of their teardown after its file's last test."""

    own: float
    fixtures: dict[str, float]
    ending: float


def recorded(record: Path = RECORD) -> dict[str, float]:
    """Reads the recorded CPU seconds by test id; only slow tests are recorded."""
    return json.loads(record.read_text()) if record.exists() else {}


def seconds_alone(costs: Mapping[str, Cost]) -> dict[str, float]:
    """Computes what each test would take if it ran alone: its own seconds and those of every shared fixture that it uses.

    A file's shared fixtures end after its last test. Each test of the file that uses one is charged all that this takes.
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


def measurable(hierarchy: Path) -> bool:
    """Returns whether groups can be made in this cgroup v2 hierarchy."""
    return os.access(hierarchy / "cgroup.procs", os.W_OK)


class ControlGroup:
    """Moves this process into a new control group, whose CPU seconds the kernel counts; what it starts joins it.

    Raises pytest.UsageError without root and cgroup v2.
    """

    def __init__(self) -> None:
        current = next(line[4:] for line in Path("/proc/self/cgroup").read_text().splitlines() if line[:3] == "0::")
        self._parent = next((path / current for path in HIERARCHIES if measurable(path)), None)
        if self._parent is None:
            raise pytest.UsageError("--record-cpu-seconds needs root and a writable cgroup v2")
        self._group = self._parent / f"longboat-tests-{os.getpid()}"
        self._group.mkdir()
        (self._group / "cgroup.procs").write_text(str(os.getpid()))

    def cpu_seconds(self) -> float:
        """Returns the CPU seconds used since the group was made."""
        counters = dict(line.split() for line in (self._group / "cpu.stat").read_text().splitlines())
        return int(counters["usage_usec"]) / 1e6

    def close(self) -> None:
        """Removes the group; what still runs in it moves to the group that this process came from."""
        for pid in (self._group / "cgroup.procs").read_text().split():
            with suppress(ProcessLookupError):
                (self._parent / "cgroup.procs").write_text(pid)
        self._group.rmdir()


@dataclass(eq=False)
class Measurement:
    """Measures the tests of one process."""

    group: ControlGroup = field(default_factory=ControlGroup)
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
            ids = [id(definition) for overrides in definitions for definition in overrides]
            used = [self.fixtures[each] for each in ids if each in self.fixtures]
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
        seconds = recorded(self.record) | seconds_alone(self.costs)
        slow = {test: round(each, 2) for test, each in sorted(seconds.items()) if each > SLOW_SECONDS}
        self.record.write_text(json.dumps(slow, indent=0) + "\n")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds `--record-cpu-seconds`."""
    text = f"update FILE with the CPU seconds of the tests of this run (default: tests/{RECORD.name}; needs root)"
    option = {"nargs": "?", "const": RECORD, "metavar": "FILE", "type": Path}
    parser.getgroup("longboat").addoption("--record-cpu-seconds", help=text, **option)


def pytest_configure(config: pytest.Config) -> None:
    """Measures in each process that runs tests, and writes in the one that gathers their reports."""
    if record := config.getoption("--record-cpu-seconds"):
        config.pluginmanager.register(Measurement())
        if "PYTEST_XDIST_WORKER" not in os.environ:
            config.pluginmanager.register(Writer(record))
