"""What happens to jobs when the control plane loses something for a while: the CRD, the operator's rights, the newest state of etcd."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from e2e import site, small_job
from e2e.cluster.cluster import Cluster
from e2e.fixtures import lent
from e2e.host_runtime import REPOSITORY
from e2e.installation import NAMESPACE as SYSTEM
from e2e.installation import RELEASE
from e2e.jobs import Job
from e2e.prompts import nothing_is_lost
from e2e.site import Site
from tests.support.waiting import eventually

pytestmark = [pytest.mark.cluster, pytest.mark.extended, pytest.mark.timeout(3600)]

NAMESPACE = "control-plane"
ENDLESS: dict[str, Any] = {"rounds": {"steps": 100_000, "promptsPerRound": 4}}


@pytest.fixture(scope="module")
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """Yields a cluster of its own, since jobs of other tests would be lost with their CRD."""
    with lent(request.config, "control-plane") as made:
        yield made


@pytest.fixture(scope="module")
def own_site(cluster: Cluster) -> Site:
    made = site.prepare(cluster, NAMESPACE)
    small_job.write_data(made.data)
    return made


@pytest.fixture
def job(own_site: Site, request: pytest.FixtureRequest) -> Iterator[Job]:
    """Yields a job that trains without end."""
    made = Job(own_site.cluster, own_site.namespace, request.function.__name__.replace("_", "-")[-30:].strip("-"))
    made.apply(small_job.spec(**ENDLESS))
    made.wait_for_step(3)
    yield made
    made.delete()


def operator_restarts(cluster: Cluster) -> dict[str, int]:
    """Returns how often the operator's containers were restarted, by pod."""
    options = ("-n", SYSTEM, "get", "pods", "-l", f"app.kubernetes.io/instance={RELEASE}", "-o", "json")
    pods = json.loads(cluster.kubectl(*options))["items"]
    return {
        pod["metadata"]["name"]: sum(each["restartCount"] for each in pod["status"]["containerStatuses"])
        for pod in pods
    }


def test_jobs_are_served_again_once_their_crd_is_back(job: Job) -> None:
    cluster = job.cluster
    before = operator_restarts(cluster)
    crd = REPOSITORY / "crds" / "rljobs.yaml"
    cluster.kubectl("delete", "-f", str(crd))
    cluster.kubectl("apply", "-f", str(crd))
    cluster.kubectl("wait", "--for=condition=Established", "crd/rljobs.longboat.dev")
    # While the API server doesn't serve the kind of their owner, the garbage collector may leave pods.
    eventually(lambda: not job.pods())
    after = Job(cluster, job.namespace, "after")
    after.apply(small_job.spec(**ENDLESS))
    after.wait_for_step(1)
    assert operator_restarts(cluster) == before
    after.delete()


def test_a_job_trains_on_while_the_operator_has_no_rights(job: Job) -> None:
    cluster = job.cluster
    before, pods = operator_restarts(cluster), job.pod_uids()
    saved = json.loads(cluster.kubectl("get", "clusterrolebinding", RELEASE, "-o", "json"))
    cluster.kubectl("delete", "clusterrolebinding", RELEASE)
    cluster.control_plane.restart("kube-apiserver")  # watches that are open would go on
    eventually(cluster.api.serves)
    waiting = Job(cluster, job.namespace, "waiting")
    waiting.apply(small_job.spec(**ENDLESS))
    log = ("-n", SYSTEM, "logs", "-l", f"app.kubernetes.io/instance={RELEASE}", "--tail=-1")
    eventually(lambda: "rljobs.longboat.dev is forbidden" in cluster.kubectl(*log))
    job.wait_for_step(job.step() + 2)
    assert waiting.status() == {}
    saved["metadata"] = {"name": RELEASE, "labels": saved["metadata"]["labels"]}
    cluster.kubectl("create", "-f", "-", stdin=json.dumps(saved))
    waiting.wait_for_step(1)
    waiting.delete()
    assert (operator_restarts(cluster), job.pod_uids()) == (before, pods)
    assert job.status().get("restarts", 0) == 0


def test_a_job_trains_on_from_its_checkpoint_when_etcd_is_restored(job: Job, tmp_path: Path) -> None:
    """The driver's number is granted twice, since the API server has forgotten the first time; files on the claim have it."""
    plane, saved = job.cluster.control_plane, tmp_path / "etcd"
    with plane.stopped() as data:
        shutil.copytree(data, saved)
    job.wait_for_step(job.step() + 2)
    job.cluster.kubectl("-n", job.namespace, "delete", "pod", job.pod("driver"), "--grace-period=0", "--force")
    job.wait("a second driver", lambda: job.status()["allocation"]["incarnation"]["number"] > 1)
    job.wait_for_step(job.step() + 2)
    reached = job.step()
    with plane.stopped() as data:
        shutil.rmtree(data)
        shutil.copytree(saved, data)
    for node in job.cluster.nodes:  # a kubelet would wait for versions that it has had already
        node.kill_kubelet()
        node.start_kubelet()
    job.wait_for_step(reached + 2)
    nothing_is_lost(job)
