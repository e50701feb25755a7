"""The pytest fixture that lends a test cluster to any test of the repository."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from e2e.cluster import Cluster
from e2e.cluster import cluster as clusters


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds `--cluster`."""
    text = "use the running cluster NAME, and leave it running, instead of one made for this run"
    parser.getgroup("longboat").addoption("--cluster", metavar="NAME", help=text)


@contextmanager
def lent(config: pytest.Config, program: str) -> Iterator[Cluster]:
    """Yields the cluster that `--cluster` names, else a new one of two nodes, which is taken down in the end."""
    name = config.getoption("--cluster")
    if name:
        cluster = Cluster.find(name)
        if cluster is None:
            pytest.fail(f"--cluster {name}: it is not up; `python -m e2e.cluster up --name {name} --nodes 2` starts it")
        yield cluster
        return
    with clusters.own(program, nodes=2) as made:
        yield made


@pytest.fixture(scope="session")
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """Yields the cluster that tests share, unless their package has one of its own."""
    with lent(request.config, "pytest") as made:
        yield made


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Takes the cluster down before tests that use none, unless `--cluster` names it: it would only take their CPUs."""
    if nextitem is not None and item.get_closest_marker("cluster") and not nextitem.get_closest_marker("cluster"):
        for definition in item._fixtureinfo.name2fixturedefs.get("cluster", ()):  # type: ignore[attr-defined]
            definition.finish(item._request)  # type: ignore[attr-defined]
