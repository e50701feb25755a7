"""Jobs without room wait and don't fail: behind scheduling gates, and in a quota that has room for one and a half of them."""

import json
from collections.abc import Callable, Iterator
from operator import not_
from typing import Any

import pytest

from e2e import small_job
from e2e.cluster.cluster import Cluster
from e2e.jobs import Job
from e2e.site import Site, prepare_namespace
from e2e.volumes import apply
from tests.support.waiting import eventually

pytestmark = [pytest.mark.cluster, pytest.mark.extended]

GATE = "example.com/queue"
HOLD = "hold-waiting"


def light(specs: dict[str, Any]) -> None:
    """Lowers what pods request, so that all of them fit beside those of other tests."""
    for spec in specs.values():
        for container in spec["containers"]:
            container["resources"]["requests"]["cpu"] = "20m"


def gated(specs: dict[str, Any]) -> None:
    light(specs)
    for spec in specs.values():
        spec["schedulingGates"] = [{"name": GATE}]


def phase_and_reason(job: Job) -> tuple[str | None, str | None]:
    status = job.status()
    return status.get("phase"), status.get("reason")


def test_a_job_behind_gates_is_queued_for_longer_than_any_deadline_and_keeps_its_pods(
    site: Site, new_job: Callable[[str], Job]
) -> None:
    short = {"startDeadlineSeconds": 20, "placementTimeoutSeconds": 10}
    job, unready = new_job("gated"), new_job("unready")
    job.apply(small_job.spec(site.apply_runtime("gated", gated), failurePolicy=short))
    job.wait(
        "reason SchedulingGated", lambda: phase_and_reason(job), lambda state: state == ("Queued", "SchedulingGated")
    )
    assert GATE in job.condition("Scheduled")["message"]
    pods = job.pod_uids()
    # This one has its nodes and never gets ready: when it has failed, the same deadline is over for the first job too.
    spec = small_job.spec(site.apply_runtime("light", light), failurePolicy=short)
    spec["rollout"]["replicas"] = 0
    spec["rewards"] = [{"name": "vowels", "configMap": {"name": "nowhere", "key": "reward.py", "function": "reward"}}]
    unready.apply(spec)
    assert unready.wait_for_failure()["reason"] == "StartDeadlineExceeded"
    assert phase_and_reason(job) == ("Queued", "SchedulingGated")
    assert job.pod_uids() == pods
    job.patch({"failurePolicy": {"startDeadlineSeconds": 1800, "placementTimeoutSeconds": 600}})
    lifted = json.dumps([{"op": "remove", "path": "/spec/schedulingGates"}])
    for name in pods:
        site.cluster.kubectl("-n", site.namespace, "patch", "pod", name, "--type", "json", "-p", lifted)
    job.wait_for_step(1)
    assert job.pod_uids() == pods
    assert job.status()["restarts"] == 0


@pytest.fixture
def crowded(cluster: Cluster, site: Site) -> Iterator[Site]:
    """Yields a namespace whose quota has room for one and a half of the test's jobs."""
    made = prepare_namespace(cluster, "crowded")
    small_job.write_data(made.data)
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "pods", "namespace": made.namespace}}
    apply(cluster, [quota | {"spec": {"hard": {"pods": "10"}}}])
    yield made
    cluster.kubectl("delete", "namespace", made.namespace, "--wait=false")


def test_two_jobs_that_fit_one_after_the_other_both_succeed(crowded: Site) -> None:
    runtime = crowded.apply_runtime("light", light)
    spec = small_job.spec(runtime, failurePolicy={"placementTimeoutSeconds": 15, "startDeadlineSeconds": 600})
    spec["trainer"]["replicas"] = 4
    spec["rewards"] = [small_job.hold_grades(each, HOLD) for each in spec["rewards"]]
    (crowded.data / HOLD).touch()
    jobs = [Job(crowded.cluster, crowded.namespace, name) for name in ("first", "second")]
    try:
        for job in jobs:
            job.apply(spec)
        # Neither can end: the one that got all pods holds them, and the other gives its own back.
        eventually(lambda: [phase_and_reason(job) for job in jobs], lambda states: ("Queued", "PodsReleased") in states)
        released = next(job for job in jobs if phase_and_reason(job) == ("Queued", "PodsReleased"))
        (crowded.data / HOLD).unlink()
        for job in jobs:
            job.wait_for("Succeeded")
            assert job.status()["restarts"] == 0
        assert "placement" not in released.status()
        eventually(lambda: [job.pods() for job in jobs], lambda pods: not_(any(pods)))
    finally:
        for job in jobs:
            job.delete()
