"""Tests that a job survives drained, deleted and shut down nodes, and pods that a scheduler takes back."""

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from e2e import small_job
from e2e.cluster.node import Node
from e2e.host_runtime import HOSTNAME
from e2e.installation import NAMESPACE as SYSTEM
from e2e.jobs import Job, Object
from e2e.prompts import nothing_is_lost
from e2e.site import Site
from e2e.watches import following
from tests.support.waiting import eventually

pytestmark = [pytest.mark.cluster, pytest.mark.extended]

GRACE = 60
HOLD = "hold-infrastructure"


@pytest.fixture
def emptied(site: Site) -> Iterator[Node]:
    """Yields a node on which the operator does not run; it takes pods again after the test."""
    listed = site.cluster.api.get(f"/api/v1/namespaces/{SYSTEM}/pods") or {}
    spared = {pod["spec"].get("nodeName") for pod in listed.get("items", [])}
    node = next(node for node in site.cluster.nodes if node.name not in spared)
    yield node
    site.cluster.kubectl("uncordon", node.name)


def place(site: Site, name: str, node: Node) -> str:
    """Applies a runtime template whose driver and trainer pods prefer the node; the others avoid it. Returns its name."""
    (other,) = (each.name for each in site.cluster.nodes if each is not node)
    term = {"matchExpressions": [{"key": HOSTNAME, "operator": "In", "values": [node.name]}]}
    preferred = {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 100, "preference": term}]}

    def change(specs: dict[str, Any]) -> None:
        for role, spec in specs.items():
            if role in ("driver", "trainer"):
                spec["affinity"] = {"nodeAffinity": preferred}
            else:
                spec["nodeSelector"] = {HOSTNAME: other}

    return site.apply_runtime(name, change)


def test_a_drain_of_the_node_of_driver_and_trainer_loses_no_step(
    site: Site, emptied: Node, new_job: Callable[[str], Job]
) -> None:
    job = new_job("drained")
    spec = small_job.spec(
        place(site, "drained", emptied),
        rounds={"policy": "TailBatching", "steps": 100_000, "promptsPerRound": 4},
        checkpoint={"everySteps": 1000, "graceSeconds": GRACE},
        failurePolicy={"maxDriverRestarts": 0, "maxTrainerRestarts": 0, "backoffSeconds": 1},
    )
    job.apply(spec)
    job.wait_for_step(3)
    evicted = job.pod_uids("driver", "trainer")
    assert {job.pods()[name]["spec"]["nodeName"] for name in evicted} == {emptied.name}
    assert "checkpoint" not in job.status()
    saved: list[Object] = []

    def note(event: Object) -> None:
        """Notes the job's status each time that one of the pods begins to be deleted."""
        metadata = event["object"]["metadata"]
        if metadata["uid"] in evicted.values() and "deletionTimestamp" in metadata:
            saved.append(job.status())

    selector = f"longboat.dev/job={job.name}"
    path = f"/api/v1/namespaces/{job.namespace}/pods?labelSelector=longboat.dev%2Fjob%3D{job.name}"
    drain = ("drain", emptied.name, f"--pod-selector={selector}", "--delete-emptydir-data", f"--timeout={GRACE + 60}s")
    with following(job.cluster, path, note), ThreadPoolExecutor(1) as pool:
        drained = pool.submit(job.cluster.kubectl, *drain)
        drain_status = job.wait("a drain", lambda: job.status().get("drain"))
        drained.result()  # it fails if it takes longer
    assert saved
    assert drain_status
    assert all(status.get("checkpoint", {}).get("step", 0) >= drain_status["step"] for status in saved)
    job.wait_for_step(drain_status["step"] + 3)
    status = job.status()
    assert "drain" not in status
    records = [record for record in status["restartHistory"] if record["pod"] in evicted]
    assert {record["counted"] for record in records} == {False}
    assert all(role.get("recentRestarts", 0) == 0 for role in status["roles"].values())
    nothing_is_lost(job)


def collect(job: Job, pod: str) -> None:
    """Does what the pod garbage collector does to a pod whose Node object is gone."""
    condition = {"type": "DisruptionTarget", "status": "True", "reason": "DeletionByPodGC"}
    _fail(job, pod, {"phase": "Failed", "conditions": [condition]})


def shut_down(job: Job, pod: str) -> None:
    """Says what a kubelet says of a pod that it has ended because its node shuts down."""
    condition = {"type": "DisruptionTarget", "status": "True", "reason": "TerminationByKubelet"}
    _fail(job, pod, {"phase": "Failed", "reason": "Terminated", "conditions": [condition]})


def reclaim(job: Job, pod: str) -> None:
    """Does what Kueue does to a pod whose quota it takes back."""
    condition = {"type": "TerminationTarget", "status": "True", "reason": "WorkloadEvictedDueToPreempted"}
    _patch_status(job, pod, {"conditions": [condition]})
    job.cluster.kubectl("-n", job.namespace, "delete", "pod", pod, "--wait=false", "--ignore-not-found")


def _fail(job: Job, pod: str, status: Object) -> None:
    """Sets a pod's last status and deletes it at once: its kubelet, which lives, would say that it runs."""
    _patch_status(job, pod, status)
    job.cluster.kubectl("-n", job.namespace, "delete", "pod", pod, "--grace-period=0", "--force", "--ignore-not-found")


def _patch_status(job: Job, pod: str, status: Object) -> None:
    patch = json.dumps({"status": status})
    job.cluster.kubectl(
        "-n", job.namespace, "patch", "pod", pod, "--subresource=status", "--type=strategic", "-p", patch
    )


def test_infrastructure_takes_pods_twenty_times_without_a_step_and_nothing_is_counted(
    site: Site, emptied: Node, new_job: Callable[[str], Job]
) -> None:
    """The first time the node dies and its Node object is deleted, as with a reclaimed spot node."""
    job = new_job("infrastructure")
    (site.data / HOLD).touch()
    spec = small_job.spec(
        place(site, "infrastructure", emptied),
        failurePolicy={"maxDriverRestarts": 0, "maxTrainerRestarts": 0, "backoffSeconds": 1, "maxBackoffSeconds": 1},
    )
    spec["rewards"] = [small_job.hold_grades(spec["rewards"][0], HOLD)]
    job.apply(spec)
    job.wait_for("Running")
    taken = job.pod_uids("driver", "trainer")
    emptied.power_off()
    site.cluster.kubectl("delete", "node", emptied.name)
    job.wait("new pods", lambda: job.pod_uids("driver", "trainer").keys(), lambda names: not names & taken.keys())
    emptied.power_on()
    eventually(lambda: emptied.ready(site.cluster.api))
    for number, harm in enumerate([collect, shut_down, reclaim] * 7):
        role = ("trainer", "driver")[number % 2]
        job.wait_for("RolesReady")
        pod = job.pod(role)
        harm(job, pod)
        job.wait(f"another {role} pod", lambda role=role, pod=pod: job.pod_uids(role).keys() - {pod})  # type: ignore[misc]
    status = job.status()
    assert {record["counted"] for record in status["restartHistory"]} == {False}
    assert all(role.get("recentRestarts", 0) == 0 for role in status["roles"].values())
    (site.data / HOLD).unlink()
    job.wait_for("Succeeded")
