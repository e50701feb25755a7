"""Fixtures and settings of all tests."""

import os
from collections.abc import Iterator

import pytest
import structlog
from hypothesis import settings
from xdist.remote import Producer
from xdist.scheduler import LoadFileScheduling

# Folders whose tests share a cluster; those of the first begin at once and have all CPUs, as they take longest.
SHARED = ("e2e/tests/", "e2e/tests/api/")
CPUS = sorted(os.sched_getaffinity(0))

pytest_plugins = ["e2e.fixtures"]

# How long an example takes says nothing on a machine that others use too.
settings.register_profile("longboat", deadline=None)
settings.load_profile("longboat")


def scope(nodeid: str) -> str:
    """What one worker runs from beginning to end: a file, or a folder whose tests share a cluster (pure)."""
    file = nodeid.split("::", 1)[0]
    return max((folder for folder in SHARED if file.startswith(folder)), key=len, default=file)


def _take_cpus(folder: str = "") -> None:
    """Gives a worker of several one CPU, and so everything that its tests start; the end-to-end tests' cluster has all.

    Threads of one computation wait for each other by spinning: on CPUs that others use too they take ten times as long.
    """
    worker = os.environ.get("PYTEST_XDIST_WORKER")
    if worker:
        own = CPUS[int(worker.removeprefix("gw")) % len(CPUS)]
        os.sched_setaffinity(0, CPUS if folder == SHARED[0] else {own})


def pytest_configure() -> None:
    """Before anything is imported that counts CPUs."""
    _take_cpus()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Before the test's fixtures."""
    _take_cpus(scope(item.nodeid))


class Schedule(LoadFileScheduling):
    """A worker gets a scope at a time."""

    def _split_scope(self, nodeid: str) -> str:
        return scope(nodeid)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> Schedule:
    return Schedule(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long tests first: a worker that gets one last keeps the others waiting for it."""
    long = {item.path for item in items if item.get_closest_marker("slow") or item.get_closest_marker("cluster")}
    items.sort(key=lambda item: (scope(item.nodeid) != SHARED[0], item.path not in long))


@pytest.fixture(autouse=True)
def _default_logging() -> Iterator[None]:
    """What a command under test set up would write to that test's captured output, which is closed by the next one."""
    yield
    structlog.reset_defaults()
