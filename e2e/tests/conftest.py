"""Fixtures of the tests that use Longboat as people do."""

from collections.abc import Callable, Iterator

import pytest

from e2e import site as sites
from e2e import small_job
from e2e.cluster.cluster import Cluster
from e2e.fixtures import lent
from e2e.jobs import Job

NAMESPACE = "e2e"


@pytest.fixture(scope="package")
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """A cluster of these tests' own: an operator that is installed would act on jobs that other tests make."""
    with lent(request.config, "e2e") as made:
        yield made


@pytest.fixture(scope="package")
def site(cluster: Cluster) -> sites.Site:
    """Longboat installed on the test cluster, with a namespace that enforces Pod Security `restricted` and small data."""
    data = cluster.layout.root / "data" / NAMESPACE
    prepared = sites.prepare(cluster, NAMESPACE, data)
    small_job.write_data(data)
    return prepared


@pytest.fixture(scope="package")
def finished(site: sites.Site) -> Iterator[Job]:
    """A job of a mixture of experts that has Succeeded; its rounds began while the ones before were trained."""
    job = Job(site.cluster, site.namespace, "finished")
    spec = small_job.spec(rounds={"policy": "BoundedAsync", "steps": 4, "promptsPerRound": 4})
    spec["model"]["path"] = "/data/experts"
    job.apply(spec)
    options = ("--for=condition=Succeeded", f"rljob/{job.name}", "--timeout=420s")
    site.cluster.kubectl("-n", site.namespace, "wait", *options, timeout=440)
    yield job
    job.delete()


@pytest.fixture(scope="package")
def survivor(site: sites.Site) -> Iterator[Job]:
    """A job of short and long rounds that goes on until it is deleted. A test that uses it leaves it running."""
    job = Job(site.cluster, site.namespace, "survivor")
    job.apply(small_job.spec(rounds={"policy": "TailBatching", "steps": 100_000, "promptsPerRound": 4}))
    job.wait_for("Running", 300)
    job.wait_for_step(3)
    yield job
    job.delete()


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
