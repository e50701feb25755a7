"""Fixtures of the tests that use Longboat as people do."""

from collections.abc import Callable, Iterator

import pytest

from e2e import site as sites
from e2e.cluster.cluster import Cluster
from e2e.jobs import Job
from e2e.tests import small_job

NAMESPACE = "e2e"


@pytest.fixture(scope="session")
def site(cluster: Cluster) -> sites.Site:
    """Longboat installed on the test cluster, with a namespace that enforces Pod Security `restricted` and small data."""
    data = cluster.layout.root / "data" / NAMESPACE
    prepared = sites.prepare(cluster, NAMESPACE, data)
    small_job.write_data(data)
    return prepared


@pytest.fixture
def new_job(site: sites.Site) -> Iterator[Callable[[str], Job]]:
    """Makes a handle to a job of a name; it is deleted after the test, also after a failed one."""
    made: list[Job] = []

    def make(name: str) -> Job:
        made.append(Job(site.cluster, site.namespace, name))
        return made[-1]

    yield make
    for job in made:
        job.delete()
