"""Fixtures of the tests that use Longboat as people do."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from operator import eq
from typing import Any

import pytest

from e2e import host_runtime, quickstart, reward_cpus, small_job
from e2e import site as sites
from e2e.cluster.cluster import Cluster
from e2e.fixtures import lent
from e2e.jobs import Job
from e2e.long_lived import LongLivedJob, elastic_spec, tail_batching_spec
from e2e.volumes import apply

NAMESPACE = "e2e"
LONG_LIVED = {"elastic_job", "tail_batching_job"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Puts tests of long-lived jobs first, so that those jobs are gone when other tests need the CPUs."""
    items.sort(key=lambda item: LONG_LIVED.isdisjoint(_fixtures_of(item)))


@pytest.fixture(scope="package")
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """Yields a cluster of these tests' own, unless `--cluster` is given: the operator would act on jobs that other tests make."""
    with lent(request.config, "e2e") as made:
        yield made


@pytest.fixture(scope="package")
def site(cluster: Cluster) -> sites.Site:
    """Installs Longboat on the test cluster, with a namespace that enforces Pod Security `restricted` and small data."""
    data = sites.data_folder(cluster, NAMESPACE)
    with ThreadPoolExecutor() as pool:
        prepared = pool.submit(sites.prepare, cluster, NAMESPACE)
        built = pool.submit(quickstart.write_data, data)
        small_job.write_data(data)
        built.result()
    return prepared.result()


def experts_spec() -> dict[str, Any]:
    """Makes the spec of a mixture-of-experts job of four steps, whose rounds begin while earlier ones are trained."""
    return small_job.spec(
        rounds={"policy": "BoundedAsync", "steps": 4, "promptsPerRound": 4},
        model={"path": "/data/experts", "dtype": "Float32"},
    )


FINITE_JOBS = {"quickstart_job": quickstart.spec, "experts_job": experts_spec}


@pytest.fixture(scope="package")
def long_lived_jobs(site: sites.Site, request: pytest.FixtureRequest) -> Iterator[dict[str, LongLivedJob]]:
    """Applies all jobs that tests of this run share at once, since each waits for its pods; returns the long-lived ones."""
    needed = set().union(*(_fixtures_of(item) for item in request.session.items))
    reward_cpus.write_data(site.data, heavy="none")
    apart = min(site.cluster.nodes, key=lambda node: reward_cpus.requested(node, site.cluster))
    runtime = reward_cpus.apply_runtime_apart(site, "rewards-together", apart)
    quickstart.apply_rewards(site.cluster, site.namespace)
    site.apply_runtime(quickstart.RUNTIME, lambda specs: None)
    jobs = {
        "elastic_job": LongLivedJob(site, "elastic", partial(elastic_spec, runtime)),
        "tail_batching_job": LongLivedJob(site, "tail-batching", tail_batching_spec),
    }
    for name in sorted(needed & jobs.keys()):
        jobs[name].begin()
    for name in sorted(needed & FINITE_JOBS.keys()):
        _finite_job(site, name).apply(FINITE_JOBS[name]())
    yield jobs
    for long_lived in jobs.values():
        long_lived.end()
    for name in FINITE_JOBS:
        _finite_job(site, name).delete()


def _finite_job(site: sites.Site, name: str) -> Job:
    return Job(site.cluster, site.namespace, name.replace("_", "-"))


@pytest.fixture
def quickstart_job(site: sites.Site, long_lived_jobs: dict[str, LongLivedJob]) -> Job:
    """Returns the shortened job of the example, which takes about as long as its pods do to start."""
    return _finite_job(site, "quickstart_job")


@pytest.fixture
def experts_job(site: sites.Site, long_lived_jobs: dict[str, LongLivedJob]) -> Job:
    return _finite_job(site, "experts_job")


def _fixtures_of(item: pytest.Item) -> set[str]:
    """Returns the names of all fixtures that a test uses."""
    return set(getattr(item, "fixturenames", ()))


def _lent(name: str, jobs: dict[str, LongLivedJob], request: pytest.FixtureRequest) -> Iterator[Job]:
    """Lends a job to one test; deletes it if the test fails, and after the last test that uses it."""
    failed = request.session.testsfailed
    with jobs[name].lent() as job:
        yield job
    items = request.session.items
    following = items[items.index(request.node) + 1 :]
    if request.session.testsfailed > failed or not any(name in _fixtures_of(item) for item in following):
        jobs[name].end()


@pytest.fixture
def tail_batching_job(long_lived_jobs: dict[str, LongLivedJob], request: pytest.FixtureRequest) -> Iterator[Job]:
    """Lends a job of short and long rounds that trains until it is deleted. A test may delete it: the next one gets a new job."""
    yield from _lent("tail_batching_job", long_lived_jobs, request)


@pytest.fixture
def elastic_job(long_lived_jobs: dict[str, LongLivedJob], request: pytest.FixtureRequest) -> Iterator[Job]:
    """Lends a job that trains until it is deleted: its engines may be reshaped, its CPUs may move, and it grades code."""
    yield from _lent("elastic_job", long_lived_jobs, request)


@pytest.fixture(scope="package")
def held_up(site: sites.Site) -> Iterator[dict[str, Job]]:
    """Yields two jobs, by name, that operator and kubelet keep waiting for a while, so that other tests may run meanwhile.

    `unmounted` has a reward whose ConfigMap doesn't exist, which the kubelet takes its time to say. `freed` found the name of its
    driver's ServiceAccount taken; it is free again, which the operator finds out when it next looks.
    """
    jobs = {name: Job(site.cluster, site.namespace, name) for name in ("unmounted", "freed")}
    unready = {"startDeadlineSeconds": 7200}  # far longer than their tests take
    spec = small_job.spec(failurePolicy=unready)
    spec["rollout"]["replicas"] = 0  # engines would only take CPUs
    spec["rewards"] = [{"name": "vowels", "configMap": {"name": "nowhere", "key": "reward.py", "function": "reward"}}]
    jobs["unmounted"].apply(spec)
    metadata = {"name": "freed-driver", "namespace": site.namespace}
    apply(site.cluster, [{"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata}])
    runtime = site.apply_runtime_without("nowhere", *host_runtime.CONTAINERS)
    freed = jobs["freed"]
    freed.apply(small_job.spec(runtime, checkpoint={"reclaimPolicy": "Delete"}, failurePolicy=unready))
    freed.wait("reason NameTaken", lambda: freed.condition("Scheduled").get("reason"), partial(eq, "NameTaken"))
    site.cluster.kubectl("-n", site.namespace, "delete", "serviceaccount", "freed-driver")
    yield jobs
    for job in jobs.values():
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
