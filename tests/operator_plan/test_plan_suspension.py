"""Suspend and resume."""

import pytest

from longboat_crds.reasons import ConditionType, Reason
from longboat_crds.status import Phase
from longboat_operator.planner import plan
from longboat_operator.reading.conditions import find
from tests.operator_plan.simulated_cluster import SimulatedCluster, runtime_of, spec_of

KEPT = {"incarnation": 1, "step": 40}


@pytest.fixture
def cluster() -> SimulatedCluster:
    running = SimulatedCluster(spec_of(checkpoint={"graceSeconds": 120}))
    running.up()
    running.train(43, checkpoint=KEPT)
    return running


def suspended(cluster: SimulatedCluster) -> tuple[str, str, str]:
    found = find(cluster.status.conditions, ConditionType.SUSPENDED)
    assert found
    return found.status, found.reason, found.message


def suspend(cluster: SimulatedCluster) -> None:
    cluster.edit(suspend=True)
    cluster.settle()
    cluster.train(0, "Suspended", checkpoint={"incarnation": 1, "step": 43})
    cluster.settle()
    cluster.end_deleted()
    cluster.settle()
    assert cluster.status.phase is Phase.SUSPENDED


def test_the_driver_has_time_for_a_checkpoint(cluster: SimulatedCluster) -> None:
    cluster.edit(suspend=True)
    cluster.settle()
    assert (cluster.status.phase, len(cluster.pods())) == (Phase.SUSPENDING, 6)
    assert plan(cluster.observed(), cluster.now).look_again_seconds == 120
    cluster.advance(60)
    cluster.train(0, "Suspended", checkpoint={"incarnation": 1, "step": 43})
    cluster.settle()
    assert cluster.status.phase is Phase.SUSPENDING
    cluster.end_deleted()
    cluster.settle()
    assert cluster.status.phase is Phase.SUSPENDED
    assert suspended(cluster) == ("True", Reason.CHECKPOINT_KEPT, "Step 43 is saved.")
    assert cluster.status.restarts == 0
    assert not cluster.pods()
    assert plan(cluster.observed(), cluster.now).empty


def test_a_driver_that_is_too_slow_loses_what_it_did_since_its_last_checkpoint(cluster: SimulatedCluster) -> None:
    cluster.edit(suspend=True)
    cluster.settle()
    cluster.advance(120)
    cluster.settle()
    cluster.end_deleted()
    cluster.settle()
    assert suspended(cluster) == ("True", Reason.NO_CHECKPOINT_IN_TIME, "Step 40 is saved. Step 43 was reached.")


def test_nobody_waits_for_a_driver_that_is_not_there(cluster: SimulatedCluster) -> None:
    cluster.delete_pod("sums-driver-0-a0", grace=0)
    cluster.edit(suspend=True)
    cluster.settle()
    cluster.end_deleted()
    cluster.settle()
    assert cluster.status.phase is Phase.SUSPENDED


def test_a_suspend_that_is_taken_back_in_time_changes_nothing(cluster: SimulatedCluster) -> None:
    before = {pod["metadata"]["uid"] for pod in cluster.pods()}
    cluster.crash("sums-trainer-0-a0")
    cluster.edit(suspend=True)
    cluster.settle()
    cluster.edit(suspend=False)
    cluster.start_all()
    cluster.settle()
    assert cluster.status.phase is Phase.RUNNING
    assert cluster.status.suspend_time is None
    assert {pod["metadata"]["uid"] for pod in cluster.pods()} == before
    assert cluster.status.restarts == 1


def test_a_driver_that_stopped_before_the_suspend_was_taken_back_starts_anew(cluster: SimulatedCluster) -> None:
    cluster.edit(suspend=True)
    cluster.settle()
    cluster.edit(suspend=False)
    cluster.train(0, "Suspended", checkpoint={"incarnation": 1, "step": 43})
    for _ in range(4):
        cluster.settle()
        cluster.end_deleted()
    cluster.start_all()
    cluster.settle()
    assert cluster.status.phase is Phase.STARTING
    assert {pod["metadata"]["labels"]["longboat.dev/attempt"] for pod in cluster.pods()} == {"1"}


def test_resume_makes_new_pods_and_fences_the_old_driver_off(cluster: SimulatedCluster) -> None:
    suspend(cluster)
    cluster.edit(suspend=False)
    cluster.settle()
    assert {pod["metadata"]["labels"]["longboat.dev/attempt"] for pod in cluster.pods()} == {"1"}
    assert cluster.status.phase is Phase.QUEUED
    assert cluster.number == 2
    cluster.start_all()
    cluster.settle()
    assert cluster.status.phase is Phase.STARTING, "the old driver's Suspended is not the new one's"
    cluster.start_driver()
    cluster.settle()
    assert (cluster.status.phase, cluster.number) == (Phase.RUNNING, 3)
    assert [e.reason for e in cluster.events][-4:] == ["Suspending", "Suspended", "Resumed", "Running"]


@pytest.mark.parametrize(("renew", "image"), [(False, "longboat-runtime:1"), (True, "longboat-runtime:2")])
def test_the_template_is_renewed_only_if_asked(renew: bool, image: str) -> None:
    spec = spec_of(runtimeRef={"renewOnResume": renew})
    cluster = SimulatedCluster(spec)
    cluster.up()
    suspend(cluster)
    cluster.runtime = runtime_of(image="longboat-runtime:2")
    cluster.edit(suspend=False)
    cluster.settle()
    assert {c["image"] for pod in cluster.pods() for c in pod["spec"]["containers"]} == {image}
    assert cluster.status.runtime
    assert cluster.status.runtime.revision == f"sums-runtime-{2 if renew else 1}"


def test_a_renewal_without_a_template_stays_suspended_and_says_why() -> None:
    cluster = SimulatedCluster(spec_of(runtimeRef={"renewOnResume": True}))
    cluster.up()
    suspend(cluster)
    cluster.runtime = None
    cluster.edit(suspend=False)
    cluster.settle()
    assert not cluster.pods()
    assert cluster.status.reason == Reason.RUNTIME_NOT_FOUND
    cluster.runtime = runtime_of()
    cluster.settle()
    assert len(cluster.pods()) == 6


def test_a_job_that_begins_suspended_makes_nothing() -> None:
    cluster = SimulatedCluster(spec_of(suspend=True))
    cluster.settle()
    assert cluster.status.phase is Phase.SUSPENDED
    assert not any(cluster.children.values())
    assert cluster.status.start_time is None
    cluster.edit(suspend=False)
    cluster.settle()
    assert cluster.status.phase is Phase.QUEUED
