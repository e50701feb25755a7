"""How jobs end."""

import pytest

from longboat_crds.base import Role
from longboat_crds.reasons import ConditionType, Reason
from longboat_crds.status import Phase
from longboat_operator.model import DeleteObject, JobKey, Observed, Plan
from longboat_operator.planner import plan
from longboat_operator.reading.conditions import find
from tests.operator_plan.simulated_cluster import SimulatedCluster, spec_of


@pytest.fixture
def cluster() -> SimulatedCluster:
    running = SimulatedCluster(spec_of(ttlSecondsAfterFinished=3600))
    running.up()
    running.train(100)
    return running


def test_success(cluster: SimulatedCluster) -> None:
    cluster.train(0, "Succeeded", checkpoint={"incarnation": 1, "step": 100, "export": "/checkpoint/export"})
    cluster.settle()
    status = cluster.status
    assert (status.phase, status.reason) == (Phase.SUCCEEDED, Reason.JOB_SUCCEEDED)
    found = find(status.conditions, ConditionType.SUCCEEDED)
    assert found
    assert found.message == "100 steps are trained; the model is in /checkpoint/export"
    assert status.completion_time
    cluster.end_deleted()
    assert not cluster.pods()
    assert cluster.children["Service"], "goes with the job"


def test_an_end_stays_as_it_was_under_an_api_that_cannot_read_the_spec(cluster: SimulatedCluster) -> None:
    cluster.train(0, "Succeeded")
    cluster.settle()
    cluster.edit(futureField={"x": 1})
    cluster.settle()
    assert (cluster.status.phase, cluster.status.reason) == (Phase.SUCCEEDED, Reason.JOB_SUCCEEDED)


def test_a_finished_job_is_deleted_after_its_time(cluster: SimulatedCluster) -> None:
    cluster.train(0, "Succeeded")
    cluster.settle()
    cluster.end_deleted()
    cluster.settle()
    found = plan(cluster.observed(), cluster.now)
    assert (found.actions, found.look_again_seconds) == ((), 3600)
    cluster.advance(3600)
    cluster.reconcile()
    assert cluster.job is None
    assert set(cluster.children["PersistentVolumeClaim"]) == {"sums-checkpoint"}
    assert plan(cluster.observed(), cluster.now) == Plan()


def test_a_fatal_problem_is_the_reason_of_the_failure(cluster: SimulatedCluster) -> None:
    problem = {"reason": "ModelNotFound", "field": "spec.model.path", "message": "no config.json", "fatal": True}
    cluster.train(0, "Failed", problem=problem)
    cluster.settle()
    assert (cluster.status.phase, cluster.status.reason) == (Phase.FAILED, "ModelNotFound")
    found = find(cluster.status.conditions, ConditionType.FAILED)
    assert found
    assert found.message == "spec.model.path: no config.json"


def test_a_superseded_driver_ends_no_job(cluster: SimulatedCluster) -> None:
    """It runs on, on a node that is lost, and finds there what its successor doesn't: no model, for example."""
    superseded = cluster.number
    cluster.drive(demand={"incarnationRequest": "successor"})
    cluster.settle()
    assert cluster.number == superseded + 1
    problem = {"reason": "ModelNotFound", "field": "spec.model.path", "message": "no config.json", "fatal": True}
    cluster.drive(training={"incarnation": superseded, "state": "Failed", "step": 0}, problem=problem)
    cluster.settle()
    assert cluster.status.phase is Phase.RESTARTING
    degraded = find(cluster.status.conditions, ConditionType.DEGRADED)
    assert degraded
    assert degraded.status == "False"
    cluster.train(0, "Failed", problem=problem)
    cluster.settle()
    assert (cluster.status.phase, cluster.status.reason) == (Phase.FAILED, "ModelNotFound")


def test_a_driver_that_failed_without_a_word(cluster: SimulatedCluster) -> None:
    cluster.train(0, "Failed")
    cluster.settle()
    assert cluster.status.reason == Reason.DRIVER_FAILED


def test_a_problem_that_is_not_fatal_is_shown_and_goes_away(cluster: SimulatedCluster) -> None:
    cluster.drive(problem={"reason": "NoGraders", "message": "no reward pod answers"})
    cluster.settle()
    found = find(cluster.status.conditions, ConditionType.DEGRADED)
    assert found
    assert (found.status, found.reason, found.message) == ("True", "NoGraders", "no reward pod answers")
    assert cluster.status.phase is Phase.RUNNING
    assert cluster.status.reason == "NoGraders"
    assert cluster.events[-1].reason == "NoGraders"
    cluster.drive(problem=None)
    cluster.settle()
    found = find(cluster.status.conditions, ConditionType.DEGRADED)
    assert found
    assert found.status == "False"


def test_a_job_that_waits_for_changed_inputs_is_degraded_however_long_it_waits_and_can_be_suspended() -> None:
    cluster = SimulatedCluster(spec_of())
    cluster.up()
    problem = {
        "reason": "CheckpointMismatch",
        "field": "spec.checkpoint.acceptChanges",
        "message": "The checkpoint of step 4 was made with other inputs. Data: row 3 has changed.",
    }
    cluster.train(0, "Starting", problem=problem)
    cluster.settle()
    for _ in range(2):
        assert (cluster.status.phase, cluster.status.reason) == (Phase.STARTING, Reason.CHECKPOINT_MISMATCH)
        found = find(cluster.status.conditions, ConditionType.DEGRADED)
        assert found
        assert (found.status, found.reason) == ("True", "CheckpointMismatch")
        assert found.message == f"{problem['field']}: {problem['message']}"
        cluster.crash(cluster.pods(Role.TRAINER)[0]["metadata"]["name"])
        cluster.advance(86_400)
        cluster.settle()
        cluster.start_all()
        cluster.settle()
    assert "CheckpointMismatch" in [event.reason for event in cluster.events]
    cluster.edit(checkpoint={"acceptChanges": ["Data"]})
    cluster.train(1, problem=None)
    cluster.settle()
    assert cluster.status.phase is Phase.RUNNING
    cluster.train(0, "Starting", problem=problem)
    cluster.edit(suspend=True)
    cluster.settle()
    cluster.train(0, "Suspended")
    cluster.settle()
    cluster.end_deleted()
    cluster.settle()
    assert cluster.status.phase is Phase.SUSPENDED


def test_the_word_of_an_earlier_driver_does_not_end_the_job(cluster: SimulatedCluster) -> None:
    cluster.drive(demand={"incarnationRequest": "a-new-start"})
    cluster.settle()
    cluster.drive(training={"incarnation": 1, "state": "Succeeded", "step": 100})
    cluster.settle()
    assert cluster.status.phase is Phase.RESTARTING


def test_pods_on_a_dead_node_do_not_hold_the_end_up(cluster: SimulatedCluster) -> None:
    cluster.train(0, "Succeeded")
    cluster.lose_node_of("sums-rollout-0-a0")
    cluster.settle()
    cluster.end_deleted()
    cluster.advance(91)
    cluster.settle()
    assert not cluster.pods()


def test_a_job_that_is_being_deleted_is_left_to_the_garbage_collector(cluster: SimulatedCluster) -> None:
    cluster.delete_pod("sums-trainer-0-a0", grace=0)
    cluster.job["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"  # type: ignore[index]
    assert plan(cluster.observed(), cluster.now) == Plan()
    assert plan(Observed(JobKey("research", "gone"), None), cluster.now) == Plan()


def test_only_pods_of_this_uid_are_deleted(cluster: SimulatedCluster) -> None:
    uids = {pod["metadata"]["uid"] for pod in cluster.pods()}
    cluster.train(0, "Succeeded")
    cluster.reconcile()
    deleted = {a.uid for a in cluster.reconcile().actions if isinstance(a, DeleteObject)}
    assert deleted == uids


def test_steps_that_are_raised_when_the_driver_has_ended_are_made_by_another_driver() -> None:
    """The job goes on, and nothing of that is held against it."""
    cluster = SimulatedCluster(spec_of(failurePolicy={"maxDriverRestarts": 0}))
    cluster.up()
    cluster.train(100, "Succeeded", checkpoint={"incarnation": 1, "step": 100})
    cluster.edit(rounds={"steps": 150})
    others = {pod["metadata"]["uid"] for pod in cluster.pods()} - {uid_of(cluster, "sums-driver-0-a0")}
    cluster.settle()
    cluster.end_deleted()
    cluster.settle()
    assert {pod["metadata"]["name"] for pod in cluster.pods(Role.DRIVER)} == {"sums-driver-0-a1"}
    assert cluster.status.phase is Phase.RESTARTING
    cluster.start_all()
    cluster.start_driver()
    cluster.settle()
    assert cluster.status.phase is Phase.RUNNING
    assert others < {pod["metadata"]["uid"] for pod in cluster.pods()}, "other pods stay"
    (record,) = cluster.status.restart_history or ()
    assert (record.pod, record.counted) == ("sums-driver-0-a0", False)
    assert record.message == "rounds.steps was raised to 150 when 100 steps were trained"
    assert cluster.status.restarts == 1
    assert cluster.status.roles
    assert cluster.status.roles.driver
    assert cluster.status.roles.driver.recent_restarts == 0
    told = [event for event in cluster.events if event.reason == Reason.RESTARTING]
    assert [(event.type, event.message) for event in told] == [
        ("Normal", f"Role driver, pod sums-driver-0-a0: {record.message}")
    ]
    cluster.train(50, "Succeeded")
    cluster.settle()
    assert cluster.status.phase is Phase.SUCCEEDED


@pytest.mark.parametrize("cut", range(1, 12))
def test_the_driver_is_replaced_once_wherever_the_operator_is_cut_short(cut: int) -> None:
    cluster = SimulatedCluster()
    cluster.up()
    cluster.train(100, "Succeeded")
    cluster.edit(rounds={"steps": 150})
    for _ in range(cut):
        cluster.reconcile(cut=1)
        cluster.end_deleted()
    cluster.settle()
    cluster.end_deleted()
    cluster.settle()
    assert {pod["metadata"]["name"] for pod in cluster.pods(Role.DRIVER)} == {"sums-driver-0-a1"}
    assert [(record.pod, record.counted) for record in cluster.status.restart_history or ()] == [
        ("sums-driver-0-a0", False)
    ]


def test_a_job_that_ended_behind_the_last_step_of_its_spec_has_succeeded(cluster: SimulatedCluster) -> None:
    """It resumed from a checkpoint that had more steps than it was asked for."""
    cluster.train(20, "Succeeded")
    cluster.settle()
    assert cluster.status.phase is Phase.SUCCEEDED


def test_a_job_with_steps_left_may_be_suspended_though_its_driver_has_ended(cluster: SimulatedCluster) -> None:
    cluster.train(0, "Succeeded", checkpoint={"incarnation": 1, "step": 100})
    cluster.edit(rounds={"steps": 150}, suspend=True)
    cluster.settle()
    cluster.end_deleted()
    cluster.settle()
    assert cluster.status.phase is Phase.SUSPENDED
    cluster.edit(suspend=False)
    cluster.settle()
    cluster.start_all()
    cluster.start_driver()
    cluster.settle()
    assert cluster.status.phase is Phase.RUNNING
    assert not cluster.status.restart_history


def uid_of(cluster: SimulatedCluster, pod: str) -> str:
    return str(cluster.children["Pod"][pod]["metadata"]["uid"])
