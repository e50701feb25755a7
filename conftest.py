"""Fixtures and settings of all tests."""

import os
from collections.abc import Generator, Iterator

import pytest
import structlog
from xdist.remote import Producer
from xdist.scheduler import LoadFileScheduling

from longboat_runtime.imports import uncollected
from tests.support import examples

# Tests that share a cluster or a process with vLLM, by the beginning of their paths.
SHARED = {
    "e2e/tests/api/": "api",
    "tests/driver/test_kubernetes_broker.py": "cluster",
    "tests/e2e_cluster/": "cluster",
    "tests/operator_plan/test_admission.py": "cluster",
    "tests/operator_shell/": "cluster",
    "tests/rollout/conformance/": "vllm",
}

# The policy by which this process is scheduled.
SCHEDULING = os.sched_getscheduler(0)

# Where all tests are that are marked `alone`: collecting the others to find them would take longer than they do.
ALONE = "tests/e2e_cluster/"

pytest_plugins = ["e2e.fixtures", "tests.support.cpu_seconds", "tests.support.journal", "tests.support.tiers"]

examples.register()


def pytest_configure(config: pytest.Config) -> None:
    """Limits each pytest-xdist worker, and all that its tests start, to one thread per computation.

    Threads of one computation spin while they wait for each other: on CPUs that others use too they take ten times as long.
    """
    if config.getoption("numprocesses"):
        os.environ["OMP_NUM_THREADS"] = "1"


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Test files import most of torch, transformers and Ray."""
    with uncollected():
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown() -> Generator[None, object, object]:
    """No test leaves its process another scheduling: what later tests start would starve others, or be starved."""
    result = yield
    assert os.sched_getscheduler(0) == SCHEDULING, "the test has changed how its process is scheduled"
    return result


class Schedule(LoadFileScheduling):
    """Gives a worker a file at a time, or all files that share a cluster or a process: otherwise each worker would start one."""

    def _split_scope(self, nodeid: str) -> str:
        file = super()._split_scope(nodeid)
        return next((scope for start, scope in SHARED.items() if file.startswith(start)), file)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> Schedule:
    return Schedule(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    astray = [item.nodeid for item in items if item.get_closest_marker("alone") and not item.nodeid.startswith(ALONE)]
    if astray:
        raise pytest.UsageError(f"marked `alone`, but not below {ALONE}, where `make test-all` looks: {astray}")


@pytest.fixture(autouse=True)
def _default_logging() -> Iterator[None]:
    """What a command under test set up would write to that test's captured output, which is closed by the next one."""
    yield
    structlog.reset_defaults()
