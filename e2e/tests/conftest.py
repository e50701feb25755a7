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
from e2e.long_lived import LongLived, elastic_spec, tail_batching_spec
from e2e.volumes import apply

NAMESPACE = "e2e"
LONG_LIVED = {"elastic_job", "tail_batching_job"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests of long-lived jobs first: while others run, these would only take CPUs."""
    items.sort(key=lambda item: LONG_LIVED.isdisjoint(_uses(item)))


@pytest.fixture(scope="package")
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """A cluster of these tests' own: an operator that is installed would act on jobs that other tests make."""
    with lent(request.config, "e2e") as made:
        yield made


@pytest.fixture(scope="package")
def site(cluster: Cluster) -> sites.Site:
    """Longboat installed on the test cluster, with a namespace that enforces Pod Security `restricted` and small data."""
    data = sites.data_folder(cluster, NAMESPACE)
    with ThreadPoolExecutor() as pool:
        prepared = pool.submit(sites.prepare, cluster, NAMESPACE)
        built = pool.submit(quickstart.write_data, data)
        small_job.write_data(data)
        built.result()
    return prepared.result()


def experts_spec() -> dict[str, Any]:
    """A job of a mixture of experts, of four steps; its rounds begin while the ones before are trained."""
    return small_job.spec(
        rounds={"policy": "BoundedAsync", "steps": 4, "promptsPerRound": 4},
        model={"path": "/data/experts", "dtype": "Float32"},
    )


FINITE = {"quickstart_job": quickstart.spec, "experts_job": experts_spec}


@pytest.fixture(scope="package")
def begun(site: sites.Site, request: pytest.FixtureRequest) -> Iterator[dict[str, LongLived]]:
    """The long-lived jobs that tests of this run use; these and the others are applied at once, since each waits for its pods."""
    needed = set().union(*(_uses(item) for item in request.session.items))
    reward_cpus.write_data(site.data, heavy="none")
    apart = min(site.cluster.nodes, key=lambda node: reward_cpus.requested(node, site.cluster))
    runtime = reward_cpus.apply_runtime_apart(site, "rewards-together", apart)
    quickstart.apply_rewards(site.cluster, site.namespace)
    site.apply_runtime(quickstart.RUNTIME, lambda specs: None)
    jobs = {
        "elastic_job": LongLived(site, "elastic", partial(elastic_spec, runtime)),
        "tail_batching_job": LongLived(site, "tail-batching", tail_batching_spec),
    }
    for name in sorted(needed & jobs.keys()):
        jobs[name].begin()
    for name in sorted(needed & FINITE.keys()):
        _finite(site, name).apply(FINITE[name]())
    yield jobs
    for long_lived in jobs.values():
        long_lived.end()
    for name in FINITE:
        _finite(site, name).delete()


def _finite(site: sites.Site, name: str) -> Job:
    return Job(site.cluster, site.namespace, name.replace("_", "-"))


@pytest.fixture
def quickstart_job(site: sites.Site, begun: dict[str, LongLived]) -> Job:
    """The example's job, shortened, which needs about as long as its pods take to start."""
    return _finite(site, "quickstart_job")


@pytest.fixture
def experts_job(site: sites.Site, begun: dict[str, LongLived]) -> Job:
    return _finite(site, "experts_job")


def _uses(item: pytest.Item) -> set[str]:
    """Names of all fixtures that a test uses."""
    return set(getattr(item, "fixturenames", ()))


def _lent(name: str, jobs: dict[str, LongLived], request: pytest.FixtureRequest) -> Iterator[Job]:
    """Lends a job to one test. It is deleted after a test that failed, and after the last one that uses it."""
    failed = request.session.testsfailed
    with jobs[name].lent() as job:
        yield job
    items = request.session.items
    following = items[items.index(request.node) + 1 :]
    if request.session.testsfailed > failed or not any(name in _uses(item) for item in following):
        jobs[name].end()


@pytest.fixture
def tail_batching_job(begun: dict[str, LongLived], request: pytest.FixtureRequest) -> Iterator[Job]:
    """A job of short and long rounds that trains until it is deleted. A test that uses it leaves it running."""
    yield from _lent("tail_batching_job", begun, request)


@pytest.fixture
def elastic_job(begun: dict[str, LongLived], request: pytest.FixtureRequest) -> Iterator[Job]:
    """A job with engines that may be reshaped, CPUs that may move and code that is graded, which trains until it is deleted."""
    yield from _lent("elastic_job", begun, request)


@pytest.fixture(scope="package")
def held_up(site: sites.Site) -> Iterator[dict[str, Job]]:
    """Jobs that operator and kubelet let wait for half a minute: other tests may run meanwhile.

    `unmounted` has a reward whose ConfigMap doesn't exist, which the kubelet takes its time to say. `freed` found its driver's
    ServiceAccount taken, and the operator looks again whether it still is; it isn't.
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
    freed.wait("the job says so", lambda: freed.condition("Scheduled").get("reason"), partial(eq, "NameTaken"))
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
