"""Fixtures of the tests that use Longboat as people do."""

from collections.abc import Callable, Iterator

import pytest

from e2e import host_runtime, small_job
from e2e import site as sites
from e2e.cluster.cluster import Cluster
from e2e.fixtures import lent
from e2e.jobs import Job
from e2e.volumes import apply

NAMESPACE = "e2e"


@pytest.fixture(scope="package")
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """A cluster of these tests' own: an operator that is installed would act on jobs that other tests make."""
    with lent(request.config, "e2e") as made:
        yield made


@pytest.fixture(scope="package")
def site(cluster: Cluster) -> sites.Site:
    """Longboat installed on the test cluster, with a namespace that enforces Pod Security `restricted` and small data."""
    prepared = sites.prepare(cluster, NAMESPACE)
    small_job.write_data(prepared.data)
    return prepared


@pytest.fixture(scope="package")
def long_lived(site: sites.Site) -> Iterator[dict[str, Job]]:
    """Jobs that several tests use, applied at once since each waits for its pods."""
    experts = small_job.spec(rounds={"policy": "BoundedAsync", "steps": 4, "promptsPerRound": 4})
    experts["model"]["path"] = "/data/experts"
    endless = small_job.spec(
        rounds={"policy": "TailBatching", "steps": 100_000, "promptsPerRound": 4}, rollouts={"everySteps": 1, "keep": 3}
    )
    jobs = {name: Job(site.cluster, site.namespace, name) for name in ("finished", "survivor")}
    jobs["finished"].apply(experts)
    jobs["survivor"].apply(endless)
    yield jobs
    for job in jobs.values():
        job.delete()


@pytest.fixture(scope="package")
def finished(long_lived: dict[str, Job]) -> Job:
    """A job of a mixture of experts that has Succeeded; its rounds began while the ones before were trained."""
    job = long_lived["finished"]
    options = ("--for=condition=Succeeded", f"rljob/{job.name}", "--timeout=600s")
    job.cluster.kubectl("-n", job.namespace, "wait", *options, timeout=620)
    return job


@pytest.fixture(scope="package")
def survivor(long_lived: dict[str, Job]) -> Job:
    """A job of short and long rounds that goes on until it is deleted. A test that uses it leaves it running."""
    job = long_lived["survivor"]
    job.wait_for("Running")
    job.wait_for_step(3)
    return job


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
    freed.wait("the job says so", lambda: freed.condition("Scheduled").get("reason") == "NameTaken", 60)
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
