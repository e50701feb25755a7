"""What is told rather than waited out in silence: drivers and requests without an answer, foreign containers, finalizers."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longboat_crds.base import Role
from longboat_crds.incarnations import UNANSWERED, UNANSWERED_EXIT_CODE
from longboat_crds.reasons import ConditionType, Reason
from longboat_crds.status import Condition, Phase, RestartRecord
from longboat_operator import rejections
from longboat_operator.model import CreateObject, DeleteObject, Plan
from longboat_operator.plan.pod_problems import STEADY_SECONDS
from longboat_operator.planner import plan
from longboat_operator.pods.roles import ROLES
from longboat_operator.reading.conditions import find
from longboat_operator.reading.terminations import is_ready
from tests.operator_plan.simulated_cluster import SimulatedCluster, spec_of

DRIVER, TRAINER = "sums-driver-0-a0", "sums-trainer-1-a0"
HOLD = "backup.example.com/hold"
CAUSE = "within 45 s: GET /apis/longboat.dev: 403: rljobs is forbidden"


@pytest.fixture
def cluster() -> SimulatedCluster:
    running = SimulatedCluster(spec_of(failurePolicy={"maxDriverRestarts": 1, "maxTrainerRestarts": 1}))
    running.up()
    running.train(7)
    return running


def condition(cluster: SimulatedCluster, kind: ConditionType) -> Condition:
    found = find(cluster.status.conditions, kind)
    assert found
    return found


def history(cluster: SimulatedCluster) -> list[RestartRecord]:
    return cluster.status.restart_history or []


# --- Drivers


def silent(cluster: SimulatedCluster) -> None:
    """The driver's container ends for want of an answer."""
    message = f"driver exited with code 75: driver failed: {UNANSWERED} {CAUSE}"
    cluster.crash(DRIVER, code=UNANSWERED_EXIT_CODE, message=message)


def test_ends_of_a_driver_without_an_answer_are_shown_and_never_counted(cluster: SimulatedCluster) -> None:
    for _ in range(4):
        silent(cluster)
        cluster.settle()
        cluster.advance(100)
    assert cluster.status.phase is Phase.RESTARTING
    said = condition(cluster, ConditionType.ROLES_READY)
    assert said.reason == Reason.DRIVER_SILENT
    assert said.message.endswith(f"; pod {DRIVER}: the driver had {UNANSWERED} {CAUSE}")
    assert cluster.status.roles
    assert cluster.status.roles.driver
    assert (cluster.status.roles.driver.restarts, cluster.status.roles.driver.recent_restarts) == (4, 0)
    assert {(record.reason, record.counted) for record in history(cluster)} == {(Reason.DRIVER_SILENT, False)}
    assert [event.reason for event in cluster.events].count(Reason.DRIVER_SILENT) == 4
    for _ in range(2):
        cluster.crash(DRIVER)
        cluster.settle()
        cluster.advance(100)
    assert cluster.status.reason == Reason.RESTART_LIMIT_EXCEEDED, "other ends do count"


def test_a_driver_that_waits_without_an_answer_is_told_of_although_its_container_runs() -> None:
    """It falls under the start deadline: its agent isn't ready before the first answer."""
    cluster = SimulatedCluster(spec_of(failurePolicy={"startDeadlineSeconds": 120}))
    cluster.settle()
    cluster.start_all()
    silent(cluster)
    status = cluster.children["Pod"][DRIVER]["status"]["containerStatuses"][0]
    status |= {"ready": False, "state": {"running": {"startedAt": cluster.node_time(DRIVER)}}}
    cluster.settle()
    assert (cluster.status.phase, cluster.status.reason) == (Phase.STARTING, Reason.DRIVER_SILENT)
    cluster.advance(121)
    cluster.settle()
    assert (cluster.status.phase, cluster.status.reason) == (Phase.FAILED, Reason.START_DEADLINE_EXCEEDED)
    assert CAUSE in condition(cluster, ConditionType.FAILED).message


def test_a_driver_that_gets_its_answer_is_no_longer_told_of(cluster: SimulatedCluster) -> None:
    silent(cluster)
    cluster.settle()
    cluster.start(DRIVER)
    cluster.start_driver()
    cluster.settle()
    assert (cluster.status.phase, cluster.status.reason) == (Phase.RUNNING, Reason.TRAINING)
    assert condition(cluster, ConditionType.ROLES_READY).reason == Reason.ALL_ROLES_READY


# --- Foreign containers


def failing(cluster: SimulatedCluster, name: str, times: int, state: dict[str, Any], *, ready: bool = False) -> None:
    last = {"terminated": {"exitCode": 1, "message": f"buffer {times} full", "finishedAt": cluster.node_time(name)}}
    cluster.inject(name, "log-shipper", restartCount=times, state=state, lastState=last, ready=ready)


@pytest.mark.parametrize("name", [DRIVER, TRAINER])
def test_a_foreign_container_in_a_crash_loop_is_shown_holds_nothing_up_and_is_never_counted(
    cluster: SimulatedCluster, name: str
) -> None:
    writes = []
    for times in range(1, 8):
        failing(cluster, name, times, {"waiting": {"reason": "CrashLoopBackOff"}})
        cluster.settle()
        cluster.advance(60)
        failing(cluster, name, times, {"running": {"startedAt": cluster.node_time(name)}}, ready=True)
        cluster.settle()
        cluster.advance(60)
        assert (cluster.status.phase, cluster.status.reason) == (Phase.RUNNING, Reason.TRAINING)
        writes.append(len(cluster.statuses))
    said = condition(cluster, ConditionType.ROLES_READY)
    assert (said.status, said.reason) == ("True", Reason.FOREIGN_CONTAINER_FAILING)
    assert said.message.endswith(f"; pod {name}: container log-shipper (not one of Longboat's) ended with exit code 1")
    assert len(set(writes)) == 1, "not a write for each of its restarts"
    assert not cluster.status.restarts
    assert [event.reason for event in cluster.events].count(Reason.FOREIGN_CONTAINER_FAILING) == 1


def test_a_foreign_container_that_has_run_for_long_is_no_longer_shown(cluster: SimulatedCluster) -> None:
    failing(cluster, TRAINER, 1, {"running": {"startedAt": cluster.node_time(TRAINER)}}, ready=True)
    made = cluster.reconcile()
    cluster.settle()
    assert made.look_again_seconds is not None
    assert made.look_again_seconds <= STEADY_SECONDS
    cluster.advance(STEADY_SECONDS)
    cluster.settle()
    assert condition(cluster, ConditionType.ROLES_READY).reason == Reason.ALL_ROLES_READY


def test_a_job_starts_beside_a_foreign_container_that_does_not() -> None:
    cluster = SimulatedCluster()
    cluster.settle()
    cluster.start_all()
    pulling = {"waiting": {"reason": "ImagePullBackOff", "message": "Back-off: ErrImagePull: no such image"}}
    cluster.inject(DRIVER, "log-shipper", state=pulling, ready=False)
    cluster.settle()
    said = condition(cluster, ConditionType.ROLES_READY)
    assert (said.status, said.reason) == ("True", Reason.FOREIGN_CONTAINER_FAILING)
    assert "container log-shipper: no such image" in said.message
    cluster.start_driver()
    cluster.settle()
    assert cluster.status.phase is Phase.RUNNING


def test_a_foreign_init_container_that_keeps_a_pod_from_starting_is_named(cluster: SimulatedCluster) -> None:
    cluster.delete_pod(TRAINER, grace=0)
    cluster.settle()
    cluster.advance(60)
    cluster.settle()
    name = "sums-trainer-1-a1"
    cluster.schedule(name)
    cluster.inject(name, "mesh-init", state={"waiting": {"reason": "ErrImagePull", "message": "denied"}}, ready=False)
    statuses = cluster.children["Pod"][name]["status"]["containerStatuses"]
    statuses[1] |= {"ready": False, "state": {"waiting": {"reason": "PodInitializing"}}}
    cluster.settle()
    said = condition(cluster, ConditionType.ROLES_READY)
    assert (said.status, said.reason) == ("False", Reason.IMAGE_PULL_FAILED)
    assert said.message.endswith(f"; pod {name}: container mesh-init: denied")


def test_an_own_container_counts_beside_a_foreign_one(cluster: SimulatedCluster) -> None:
    failing(cluster, TRAINER, 5, {"waiting": {"reason": "CrashLoopBackOff"}})
    cluster.settle()
    for number in (1, 2):
        cluster.crash(TRAINER, container=1)
        cluster.settle()
        cluster.advance(100)
        assert cluster.status.restarts == number
    assert cluster.status.reason == Reason.RESTART_LIMIT_EXCEEDED
    assert "container trainer ended" in condition(cluster, ConditionType.FAILED).message


@given(
    role=st.sampled_from(list(Role)),
    unready=st.sets(
        st.sampled_from(
            [
                "driver",
                "ray-head",
                "rollout",
                "reward",
                "graders",
                "trainer",
                "episodes",
                "environment",
                "istio",
                "logs",
            ]
        )
    ),
)
def test_a_pod_is_ready_if_its_own_containers_are(role: Role, unready: set[str]) -> None:
    own = ROLES[role].containers
    names = [*own, "istio", "logs"]
    every = [{"name": name, "ready": name not in unready} for name in names]
    ready = not unready & {*names}
    conditions = [{"type": "Ready", "status": str(ready)} | ({} if ready else {"reason": "ContainersNotReady"})]
    pod = {
        "spec": {"initContainers": [{"name": names[-1]}], "containers": [{"name": name} for name in names[:-1]]},
        "status": {"conditions": conditions, "containerStatuses": every},
    }
    assert is_ready(pod, own) is not bool(unready & {*own})
    assert not is_ready({**pod, "status": {}}, own)


def test_a_pod_that_waits_for_something_else_than_containers_is_not_ready() -> None:
    conditions = [{"type": "Ready", "status": "False", "reason": "ReadinessGatesNotReady"}]
    statuses = [{"name": "trainer", "ready": True}]
    pod = {
        "spec": {"containers": [{"name": "trainer"}]},
        "status": {"conditions": conditions, "containerStatuses": statuses},
    }
    assert not is_ready(pod, ("trainer",))


# --- Pods that finalizers keep


def test_a_pod_that_only_finalizers_keep_does_not_block_its_place(cluster: SimulatedCluster) -> None:
    cluster.keep(HOLD, "audit.example.com/log", role=Role.TRAINER)
    cluster.delete_pod(TRAINER)
    cluster.settle()
    assert "sums-trainer-1-a1" not in cluster.children["Pod"], "its containers still run"
    cluster.end_deleted()
    cluster.settle()
    cluster.advance(60)
    cluster.settle()
    assert "sums-trainer-1-a1" in cluster.children["Pod"]
    cluster.start_all()
    cluster.start_driver()
    cluster.settle()
    assert cluster.status.phase is Phase.RUNNING
    said = condition(cluster, ConditionType.ROLES_READY)
    assert said.status == "True"
    kept = f"pod {TRAINER} has ended, but its finalizers block its removal: {HOLD}, audit.example.com/log"
    assert said.message.endswith(f"; {kept}")
    cluster.advance(3600)
    assert not any(isinstance(action, DeleteObject) for action in cluster.planned()[1].actions)
    cluster.keep(role=Role.TRAINER)
    cluster.settle()
    assert condition(cluster, ConditionType.ROLES_READY).message == "driver 1/1, rollout 2/2, reward 1/1, trainer 2/2."


def test_the_reason_of_the_loss_is_still_that_of_the_pod(cluster: SimulatedCluster) -> None:
    """Both are seen at once, as by an operator that was away."""
    cluster.keep(HOLD)
    cluster.delete_pod(TRAINER, reason="EvictionByEvictionAPI")
    cluster.end_deleted()
    cluster.settle()
    [record] = history(cluster)
    assert (record.counted, record.message) == (False, "EvictionByEvictionAPI")


def test_pods_that_only_finalizers_keep_block_no_suspension(cluster: SimulatedCluster) -> None:
    cluster.keep(HOLD)
    cluster.edit(suspend=True)
    cluster.settle()
    cluster.train(0, "Suspended")
    cluster.settle()
    assert cluster.status.phase is Phase.SUSPENDING
    cluster.end_deleted()
    cluster.settle()
    assert cluster.status.phase is Phase.SUSPENDED
    message = condition(cluster, ConditionType.SUSPENDED).message
    assert (
        f"Pod {DRIVER} has ended, but its finalizers block its removal: {HOLD} (5 more pods are blocked too)."
        in message
    )
    cluster.edit(suspend=False)
    cluster.settle()
    assert not condition(cluster, ConditionType.SUSPENDED).message.startswith("Resumed.") or len(cluster.pods()) > 6
    cluster.start_all()
    cluster.start_driver()
    cluster.settle()
    assert (cluster.status.phase, len(cluster.pods())) == (Phase.RUNNING, 12)


def test_an_ended_job_says_which_pods_finalizers_keep(cluster: SimulatedCluster) -> None:
    cluster.keep(HOLD)
    cluster.train(93, "Succeeded")
    cluster.settle()
    cluster.end_deleted()
    cluster.settle()
    assert cluster.status.phase is Phase.SUCCEEDED
    assert HOLD in condition(cluster, ConditionType.ROLES_READY).message
    assert cluster.planned()[1].empty
    cluster.keep()
    cluster.settle()
    assert condition(cluster, ConditionType.ROLES_READY).message == ""


# --- Deleted jobs that finalizers keep


def test_a_deleted_job_that_a_foreign_finalizer_keeps_releases_its_pods_and_says_so(cluster: SimulatedCluster) -> None:
    cluster.delete_kept_job(HOLD)
    cluster.settle()
    assert all("deletionTimestamp" in pod["metadata"] for pod in cluster.pods())
    assert (cluster.status.phase, cluster.status.reason) == (Phase.TERMINATING, Reason.JOB_DELETED)
    words = f"the job was deleted, but finalizers block its removal: {HOLD}"
    assert condition(cluster, ConditionType.RUNNING).message == words
    assert [(event.reason, event.message) for event in cluster.events][-1] == ("Terminating", words)
    cluster.edit(suspend=True)
    cluster.end_deleted()
    cluster.settle()
    assert not cluster.pods()
    assert cluster.status.phase is Phase.TERMINATING
    assert cluster.planned()[1].empty
    assert cluster.status.roles
    assert cluster.status.roles.trainer
    assert cluster.status.roles.trainer.ready_text == "0/0"


@pytest.mark.parametrize("finalizers", [["orphan", HOLD], ["orphan"], ["foregroundDeletion"]])
def test_what_the_garbage_collector_does_is_left_to_it(cluster: SimulatedCluster, finalizers: list[str]) -> None:
    """With `orphan` the user wants the pods to live."""
    cluster.delete_kept_job(*finalizers)
    assert cluster.planned()[1].empty
    assert cluster.planned()[1].look_again_seconds is None


def test_a_deleted_job_that_had_ended_keeps_its_phase_and_is_not_deleted_again(cluster: SimulatedCluster) -> None:
    cluster.edit(ttlSecondsAfterFinished=0)
    cluster.train(93, "Succeeded")
    cluster.reconcile()
    cluster.delete_kept_job(HOLD)
    cluster.settle()
    cluster.end_deleted()
    cluster.settle()
    assert cluster.job
    assert (cluster.status.phase, cluster.pods()) == (Phase.SUCCEEDED, [])


def test_a_deleted_job_whose_spec_cannot_be_read_releases_its_pods(cluster: SimulatedCluster) -> None:
    assert cluster.job
    cluster.job["spec"]["rounds"] = {"promptsPerRound": "many"}
    cluster.delete_kept_job(HOLD)
    cluster.settle()
    cluster.end_deleted()
    cluster.settle()
    assert (cluster.status.phase, cluster.pods()) == (Phase.TERMINATING, [])


# --- Requests that fail for long


DOWN = 'Internal error occurred: failed calling webhook "pods.example.com": connection refused'


def without(made: Plan, kind: type) -> Plan:
    """Returns the plan without actions of this kind, as they fail."""
    return Plan(tuple(action for action in made.actions if not isinstance(action, kind)))


def fails(cluster: SimulatedCluster, kind: str, name: str) -> None:
    """Requests about this object have failed for long."""
    cluster.rejections = {name: f"{kind} {name}: {rejections.UNANSWERED}: {DOWN}"}


def test_a_create_that_fails_for_long_is_told_with_the_servers_words_and_by_an_event() -> None:
    cluster = SimulatedCluster()
    cluster.reconcile()
    fails(cluster, "Pod", DRIVER)
    made = cluster.planned()[1]
    assert any(isinstance(action, CreateObject) for action in made.actions), "it is repeated"
    cluster.carry_out(without(made, CreateObject))
    said = condition(cluster, ConditionType.SCHEDULED)
    assert (said.status, said.reason) == ("False", Reason.REQUEST_FAILED)
    assert said.message == f"Pod {DRIVER}: {rejections.UNANSWERED}: {DOWN}"
    assert (cluster.status.phase, cluster.status.reason) == (Phase.PENDING, Reason.REQUEST_FAILED)
    assert [event.reason for event in cluster.events].count(Reason.REQUEST_FAILED) == 1
    cluster.settle()
    assert condition(cluster, ConditionType.SCHEDULED).reason != Reason.REQUEST_FAILED


def test_a_running_job_that_loses_a_pod_says_why_none_takes_its_place(cluster: SimulatedCluster) -> None:
    cluster.delete_pod(TRAINER, grace=0)
    cluster.settle()
    cluster.advance(60)
    fails(cluster, "Pod", "sums-trainer-1-a1")
    made = cluster.planned()[1]
    cluster.carry_out(without(made, CreateObject))
    said = condition(cluster, ConditionType.ROLES_READY)
    assert said.reason == Reason.REQUEST_FAILED
    assert said.message.endswith(DOWN)
    assert cluster.status.reason == Reason.REQUEST_FAILED


def test_a_look_up_that_fails_for_long_is_told_of(cluster: SimulatedCluster) -> None:
    """Nothing takes the place of a pod before its fate is known."""
    del cluster.children["Pod"][TRAINER]
    fails(cluster, "Pod", TRAINER)
    made = plan(cluster.observed(), cluster.now)
    assert made.look_up == (("Pod", TRAINER),)
    assert not any(isinstance(action, CreateObject) for action in made.actions)
    cluster.carry_out(made)
    assert condition(cluster, ConditionType.SCHEDULED).reason == Reason.REQUEST_FAILED
    assert [event.reason for event in cluster.events].count(Reason.REQUEST_FAILED) == 1
    cluster.settle()
    assert condition(cluster, ConditionType.SCHEDULED).reason != Reason.REQUEST_FAILED


def test_pods_that_cannot_be_deleted_for_long_are_told_of(cluster: SimulatedCluster) -> None:
    cluster.edit(suspend=True)
    cluster.reconcile()
    cluster.train(0, "Suspended")
    fails(cluster, "Pod", DRIVER)
    made = cluster.planned()[1]
    cluster.carry_out(without(made, DeleteObject))
    assert condition(cluster, ConditionType.SUSPENDED).message.endswith(DOWN)
