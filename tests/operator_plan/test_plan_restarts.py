"""Containers that end, pods and nodes that are lost."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longboat_crds.base import Role
from longboat_crds.incarnations import incarnation_request
from longboat_crds.reasons import ConditionType, Reason
from longboat_crds.status import Incarnation, Phase, RoleStatus
from longboat_operator.model import LABEL_INDEX, CreateObject, DeleteObject
from longboat_operator.plan.incarnations import granted
from longboat_operator.planner import plan
from longboat_operator.reading.conditions import find
from longboat_operator.reading.times import stamp
from longboat_operator.watch.pod_times import with_server_times
from longboat_operator.watch.trim import trim
from tests.operator_plan.simulated_cluster import SimulatedCluster, spec_of, with_environments


def trained() -> SimulatedCluster:
    running = SimulatedCluster(spec_of(failurePolicy={"maxTrainerRestarts": 2, "maxBackoffSeconds": 30}))
    running.up()
    running.train(7)
    return running


@pytest.fixture
def cluster() -> SimulatedCluster:
    return trained()


def names(cluster: SimulatedCluster, role: Role) -> list[str]:
    return sorted(pod["metadata"]["name"] for pod in cluster.pods(role))


def failure_of(cluster: SimulatedCluster) -> str:
    found = find(cluster.status.conditions, ConditionType.FAILED)
    assert found
    return found.message


def drivers(cluster: SimulatedCluster) -> RoleStatus:
    assert cluster.status.roles
    assert cluster.status.roles.driver
    return cluster.status.roles.driver


def trainers(cluster: SimulatedCluster) -> RoleStatus:
    assert cluster.status.roles
    assert cluster.status.roles.trainer
    return cluster.status.roles.trainer


def test_a_container_that_ends_keeps_its_pod(cluster: SimulatedCluster) -> None:
    uid = cluster.children["Pod"]["sums-trainer-1-a0"]["metadata"]["uid"]
    cluster.crash("sums-trainer-1-a0", code=137, reason="OOMKilled", message="allocating 3 GiB")
    cluster.settle()
    status = cluster.status
    assert cluster.children["Pod"]["sums-trainer-1-a0"]["metadata"]["uid"] == uid
    assert status.phase is Phase.RESTARTING
    assert status.restarts == 1
    record = (status.restart_history or [])[-1]
    assert (record.role, record.pod, record.reason) == ("trainer", "sums-trainer-1-a0", Reason.OUT_OF_MEMORY)
    assert record.message == (
        "container trainer went over its memory limit: OOMKilled, exit code 137 (SIGKILL); last lines: allocating 3 GiB"
    )
    cluster.start_all()
    cluster.settle()
    assert cluster.status.phase is Phase.RUNNING


def test_too_many_restarts_fail_the_job_with_the_last_cause(cluster: SimulatedCluster) -> None:
    for number in range(3):
        cluster.crash("sums-trainer-1-a0", code=139, message=f"line one\nSegmentation fault {number}")
        cluster.settle()
    assert (cluster.status.phase, cluster.status.reason) == (Phase.FAILED, Reason.RESTART_LIMIT_EXCEEDED)
    assert failure_of(cluster) == (
        "role trainer failed 3 times since step 7 was committed (failurePolicy.maxTrainerRestarts: 2); last: pod "
        "sums-trainer-1-a0: container trainer ended with exit code 139 (SIGSEGV); last lines: line one\n"
        "Segmentation fault 2"
    )
    cluster.end_deleted()
    cluster.settle()
    assert not cluster.pods()
    assert cluster.events[-1].reason == "Failed"


def test_a_node_with_eight_trainer_pods_is_one_incident_and_the_job_lives() -> None:
    """Deleted with the node's object, or by somebody who empties the rack: no condition says that it was no fault."""
    running = SimulatedCluster(spec_of(trainer={"replicas": 8}))
    running.up()
    for pod in running.pods(Role.TRAINER):
        running.schedule(pod["metadata"]["name"], node=f"node{int(pod['metadata']['labels'][LABEL_INDEX]) % 2}")
    running.settle()
    for pod in running.pods(Role.TRAINER):
        running.delete_pod(pod["metadata"]["name"], grace=0)
        running.settle()
        running.advance(5)
    assert running.status.phase is Phase.RESTARTING
    assert trainers(running).recent_restarts == 1
    assert trainers(running).restarts == 8
    assert {record.message for record in running.status.restart_history or []} == {"it vanished"}
    running.advance(30)
    running.settle()
    running.start_all()
    running.settle()
    assert running.status.phase is Phase.RUNNING


def test_a_rank_whose_end_ends_its_peers_is_one_incident(cluster: SimulatedCluster) -> None:
    for failures in (1, 2):
        cluster.crash("sums-trainer-1-a0", code=1, message="loss is NaN")
        cluster.settle()
        cluster.advance(20)
        cluster.crash("sums-trainer-0-a0", code=134, message="NCCL watchdog")
        cluster.settle()
        assert trainers(cluster).recent_restarts == failures
        cluster.advance(20)
    assert cluster.status.phase is Phase.RESTARTING
    assert cluster.status.restarts == 4


@pytest.mark.parametrize(
    "cause", ["EvictionByEvictionAPI", "PreemptionByScheduler", "DeletionByTaintManager", "DeletionByPodGC"]
)
def test_what_kubernetes_takes_away_is_shown_and_never_counted(cluster: SimulatedCluster, cause: str) -> None:
    for attempt in range(5):
        name = f"sums-trainer-0-a{attempt}"
        cluster.delete_pod(name, reason=cause)
        cluster.settle()
        cluster.end_deleted()
        cluster.advance(100)
        cluster.settle()
        cluster.start_all()
        cluster.settle()
    assert cluster.status.phase is Phase.RUNNING
    assert (trainers(cluster).recent_restarts, trainers(cluster).restarts) == (0, 5)
    assert [record.counted for record in cluster.status.restart_history or []] == [False] * 5


def test_a_condition_of_another_scheduler_is_believed(cluster: SimulatedCluster) -> None:
    """Kueue and Volcano delete pods with conditions of their own; others give DisruptionTarget reasons of their own."""
    marks = [("TerminationTarget", "True", "WorkloadEvictedDueToPreempted"), ("Ready", "False", "Evict")]
    for attempt, (kind, status, reason) in enumerate([*marks, ("DisruptionTarget", "True", "PreemptionByYuniKorn")]):
        pod = cluster.children["Pod"][f"sums-trainer-0-a{attempt}"]
        conditions = [c for c in pod["status"]["conditions"] if c["type"] != kind]
        pod["status"]["conditions"] = [
            *conditions,
            {"type": kind, "status": status, "reason": reason, "message": "why"},
        ]
        cluster.delete_pod(f"sums-trainer-0-a{attempt}")
        replace_lost(cluster)
        record = (cluster.status.restart_history or [])[-1]
        assert (record.counted, record.message) == (False, f"{reason}: why")
    assert trainers(cluster).recent_restarts == 0


def replace_lost(cluster: SimulatedCluster) -> None:
    """Has the pods that are lost replaced."""
    cluster.settle()
    cluster.end_deleted()
    cluster.settle()
    cluster.advance(400)
    cluster.settle()
    cluster.start_all()
    cluster.settle()


@pytest.mark.parametrize("role", list(Role))
@pytest.mark.parametrize("harm", ["delete_node_of", "shut_down_node_of"])
def test_a_node_that_is_deleted_or_shut_down_twenty_times_uses_no_limit_up(
    cluster: SimulatedCluster, harm: str, role: Role
) -> None:
    """The pod garbage collector says why only in the moment in which the pod is gone, between two plans.

    The driver fails before that, afterwards, or not at all.
    """
    if role is Role.ENVIRONMENT:
        cluster = SimulatedCluster(with_environments())
        cluster.up()
    name = next(pod["metadata"]["name"].removesuffix("-a0") for pod in cluster.pods(role))
    for attempt in range(20):
        driver = cluster.pods(Role.DRIVER)[0]["metadata"]["name"]
        driver_fails = ("before", "after", "never")[attempt % 3]
        if driver_fails == "before":
            cluster.crash(driver, message="TrainerLost")
            cluster.settle()
            cluster.advance(30)
        getattr(cluster, harm)(f"{name}-a{attempt}")
        if driver_fails == "after" and role is not Role.DRIVER:
            cluster.advance(20)
            cluster.crash(driver, message="TrainerLost")
        replace_lost(cluster)
        record = next(r for r in reversed(cluster.status.restart_history or []) if r.pod == f"{name}-a{attempt}")
        assert (record.reason, record.counted) == (Reason.NODE_LOST, False)
    assert cluster.status.phase is Phase.RUNNING
    assert cluster.status.roles
    assert {role.recent_restarts for _, role in cluster.status.roles if role} == {0}
    assert getattr(cluster.status.roles, role).restarts >= 20
    assert not cluster.last_states or not cluster.observed().last_states


def test_the_restart_history_says_how_the_containers_of_a_pod_ended_that_is_gone(cluster: SimulatedCluster) -> None:
    """It failed and was deleted by force between two looks."""
    name = "sums-trainer-0-a0"
    ended = {"exitCode": 3, "message": "no space left", "finishedAt": cluster.node_time(name)}
    pod = cluster.children["Pod"].pop(name)
    statuses = [{"name": "trainer", "restartCount": 0, "state": {"terminated": ended}}]
    pod["status"] |= {"phase": "Failed", "containerStatuses": statuses}
    cluster.last_states[name] = trim(with_server_times(pod, None, cluster.now))
    replace_lost(cluster)
    [record] = cluster.status.restart_history or []
    assert record.counted
    assert "ended with exit code 3; last lines: no space left" in record.message


def test_a_driver_that_fails_in_the_same_look_as_its_trainer_goes_with_its_node_uses_no_limit_up(
    cluster: SimulatedCluster,
) -> None:
    cluster.edit(failurePolicy={"maxDriverRestarts": 0})
    cluster.crash("sums-driver-0-a0", message="TrainerLost")
    cluster.delete_node_of("sums-trainer-0-a0")
    replace_lost(cluster)
    assert cluster.status.phase is Phase.RUNNING
    assert [record.counted for record in cluster.status.restart_history or []] == [False, False]


def test_a_pod_that_a_node_refuses_because_it_shuts_down_is_not_counted(cluster: SimulatedCluster) -> None:
    status = cluster.children["Pod"]["sums-trainer-0-a0"]["status"]
    status |= {"phase": "Failed", "reason": "NodeShutdown", "message": "Pod was rejected as the node is shutting down."}
    replace_lost(cluster)
    assert [record.counted for record in cluster.status.restart_history or []] == [False]


def test_a_pod_that_drives_its_node_out_of_memory_is_at_fault(cluster: SimulatedCluster) -> None:
    pod = cluster.children["Pod"]["sums-trainer-0-a0"]
    cluster.evict("sums-trainer-0-a0")
    pod["status"]["conditions"].append({"type": "DisruptionTarget", "status": "True", "reason": "TerminationByKubelet"})
    replace_lost(cluster)
    [record] = cluster.status.restart_history or []
    assert (record.counted, record.message) == (True, "Evicted; The node was low on resource: memory.")


@pytest.mark.parametrize("cause", ["TerminationByKubelet", None])
def test_what_a_kubelet_or_a_person_ends_is_counted(cluster: SimulatedCluster, cause: str | None) -> None:
    for attempt in range(3):
        cluster.delete_pod(f"sums-trainer-0-a{attempt}", reason=cause)
        cluster.settle()
        cluster.end_deleted()
        cluster.advance(100)
        cluster.settle()
        cluster.start_all()
        cluster.settle()
    assert cluster.status.reason == Reason.RESTART_LIMIT_EXCEEDED


def test_the_last_words_are_published_before_the_pods_go(cluster: SimulatedCluster) -> None:
    for _ in range(3):
        cluster.crash("sums-trainer-1-a0")
    failing = cluster.reconcile()
    assert not [a for a in failing.actions if isinstance(a, DeleteObject)]
    assert cluster.status.phase is Phase.FAILED
    assert len([a for a in cluster.reconcile().actions if isinstance(a, DeleteObject)]) == 6


def test_restarts_are_forgiven_as_steps_commit(cluster: SimulatedCluster) -> None:
    for _ in range(10):
        cluster.crash("sums-trainer-1-a0")
        cluster.settle()
        cluster.start_all()
        cluster.train(1)
        cluster.settle()
    assert cluster.status.phase is Phase.RUNNING
    assert cluster.status.restarts == 10


def test_a_lost_pod_is_replaced_after_the_back_off_by_the_next_attempt(cluster: SimulatedCluster) -> None:
    cluster.evict("sums-rollout-1-a0")
    first = cluster.reconcile()
    assert not [a for a in first.actions if isinstance(a, DeleteObject | CreateObject)], "first the status"
    cluster.settle()
    cluster.end_deleted()
    cluster.settle()
    assert names(cluster, Role.ROLLOUT) == ["sums-rollout-0-a0"]
    assert cluster.status.phase is Phase.RUNNING, "one engine is enough to go on"
    assert cluster.status.reason == Reason.ROLES_INCOMPLETE
    wait = plan(cluster.observed(), cluster.now).look_again_seconds
    assert wait == 10
    cluster.advance(wait)
    cluster.settle()
    assert names(cluster, Role.ROLLOUT) == ["sums-rollout-0-a0", "sums-rollout-1-a1"]
    record = (cluster.status.restart_history or [])[-1]
    assert record.reason == Reason.POD_LOST
    assert "low on resource: memory" in record.message


def test_the_back_off_doubles_to_its_cap_and_is_forgiven(cluster: SimulatedCluster) -> None:
    waits = []
    for attempt in range(4):
        cluster.delete_pod(f"sums-rollout-1-a{attempt}", grace=0)
        cluster.settle()
        wait = plan(cluster.observed(), cluster.now).look_again_seconds
        assert wait
        waits.append(wait)
        cluster.advance(wait)
        cluster.settle()
        cluster.start_all()
        cluster.settle()
    assert waits == [10, 20, 30, 30]
    cluster.train(1)
    cluster.delete_pod("sums-rollout-1-a4", grace=0)
    cluster.settle()
    assert plan(cluster.observed(), cluster.now).look_again_seconds == 10


def test_a_node_that_is_gone_gives_its_pods_up_after_a_while(cluster: SimulatedCluster) -> None:
    cluster.lose_node_of("sums-trainer-0-a0")
    cluster.settle()
    assert (cluster.status.phase, cluster.status.reason) == (Phase.RESTARTING, Reason.NODE_LOST)
    wait = plan(cluster.observed(), cluster.now).look_again_seconds
    assert wait == 42, "30 s to end, 10 s to be believed dead, 2 s since times are inexact"
    cluster.advance(41)
    assert plan(cluster.observed(), cluster.now).empty
    cluster.advance(1)
    assert [a.grace_seconds for a in cluster.reconcile().actions if isinstance(a, DeleteObject)] == [0]
    cluster.settle()
    assert "sums-trainer-0-a1" in names(cluster, Role.TRAINER)


def test_a_pod_that_does_not_end_is_believed_dead_only_later_where_the_node_is_not_known_to_be(
    cluster: SimulatedCluster,
) -> None:
    cluster.delete_pod("sums-trainer-0-a0")
    cluster.settle()
    assert plan(cluster.observed(), cluster.now).look_again_seconds == 92


def test_a_pod_is_not_replaced_while_it_ends(cluster: SimulatedCluster) -> None:
    cluster.delete_pod("sums-trainer-0-a0")
    cluster.settle()
    cluster.advance(25)
    cluster.settle()
    assert names(cluster, Role.TRAINER) == ["sums-trainer-0-a0", "sums-trainer-1-a0"]
    cluster.end_deleted()
    cluster.settle()
    assert names(cluster, Role.TRAINER) == ["sums-trainer-0-a1", "sums-trainer-1-a0"]


def test_a_new_driver_gets_the_next_number_and_the_same_one_when_it_asks_again(cluster: SimulatedCluster) -> None:
    assert cluster.number == 1
    cluster.crash("sums-driver-0-a0")
    cluster.start_all()
    cluster.drive(demand={"incarnationRequest": "second"})
    cluster.settle()
    assert cluster.number == 2
    assert cluster.status.phase is Phase.RESTARTING, "what the first one said no longer counts"
    cluster.drive(demand={"incarnationRequest": "second", "rollout": {"incarnation": 1, "number": 1, "replicas": 3}})
    cluster.settle()
    assert cluster.number == 2
    cluster.train(0)
    cluster.settle()
    assert cluster.status.phase is Phase.RUNNING


@given(current=st.integers(0, 60), least=st.integers(0, 60))
def test_a_request_gets_the_next_number_or_the_least_that_it_can_use(current: int, least: int) -> None:
    before = Incarnation(number=current, request="before") if current else None
    request = incarnation_request("6b5e", least)
    after = granted(before, request)
    assert after == Incarnation(number=max(current + 1, least), request=request)
    assert granted(after, request) is after
    plain = granted(before, "6b5e")
    assert plain
    assert plain.number == current + 1, "drivers up to 0.2.0 name no number"


def test_a_driver_that_passes_over_numbers_on_its_claim_has_not_failed(cluster: SimulatedCluster) -> None:
    cluster.drive(demand={"incarnationRequest": incarnation_request("6b5e", 40)})
    cluster.settle()
    assert cluster.number == 40
    cluster.train(0)
    cluster.settle()
    assert cluster.status.phase is Phase.RUNNING
    assert (drivers(cluster).restarts, cluster.status.restarts) == (0, 0)


def test_a_driver_that_fails_inside_its_container_reaches_its_limit_with_the_cause(cluster: SimulatedCluster) -> None:
    """Its agent starts it again before the kubelet sees anything; the next start asks for its number and says so."""
    for number in range(6):
        assert cluster.status.phase is not Phase.FAILED
        failure = f"driver exited with code 1: RuntimeError: no step {number}"
        cluster.drive(demand={"incarnationRequest": f"start {number}", "previousFailure": failure})
        cluster.settle()
        cluster.settle()
    assert cluster.status.reason == Reason.RESTART_LIMIT_EXCEEDED
    assert "role driver failed 6 times since step 7 was committed" in failure_of(cluster)
    assert "RuntimeError: no step 5" in failure_of(cluster)


def test_a_failure_of_the_driver_is_counted_once_whoever_tells_it(cluster: SimulatedCluster) -> None:
    """Twice inside its container, then with it: three failures, and the start after them is none."""
    for number in (1, 2):
        cluster.drive(demand={"incarnationRequest": f"start {number}", "previousFailure": "driver exited with code 1"})
        cluster.settle()
        cluster.advance(5)
    cluster.crash("sums-driver-0-a0")
    cluster.settle()
    cluster.drive(demand={"incarnationRequest": "start 3"})
    cluster.settle()
    assert drivers(cluster).recent_restarts == 3
    assert cluster.number == 4


@pytest.mark.parametrize("driver_first", [True, False])
def test_a_driver_that_loses_a_drained_rank_uses_no_limit_up(cluster: SimulatedCluster, driver_first: bool) -> None:
    """Ray may tell it of a lost node before Kubernetes takes the node's pods away."""
    for attempt in range(8):
        if driver_first:
            cluster.crash("sums-driver-0-a0", message="TrainerLost")
            cluster.settle()
            cluster.advance(100)
        cluster.delete_pod(f"sums-trainer-0-a{attempt}", reason="EvictionByEvictionAPI")
        cluster.settle()
        cluster.advance(20)
        if not driver_first:
            cluster.crash("sums-driver-0-a0", message="TrainerLost")
        cluster.settle()
        cluster.end_deleted()
        cluster.advance(400)
        cluster.settle()
        cluster.start_all()
        cluster.settle()
    assert drivers(cluster).recent_restarts == 0
    assert drivers(cluster).restarts == 8
    for _ in range(6):
        assert cluster.status.phase is not Phase.FAILED
        cluster.crash("sums-driver-0-a0", message="out of ideas")
        cluster.settle()
        cluster.advance(170)
    assert cluster.status.reason == Reason.RESTART_LIMIT_EXCEEDED, "what was excused excuses nothing else"
    assert "out of ideas" in failure_of(cluster)


def test_starts_after_a_suspension_a_disruption_or_with_a_new_head_use_no_limit_up(cluster: SimulatedCluster) -> None:
    for number in range(3):
        cluster.drive(demand={"incarnationRequest": f"new head {number}"})
        cluster.settle()
        cluster.train(0)
        cluster.settle()
    cluster.delete_pod("sums-driver-0-a0", reason="EvictionByEvictionAPI")
    cluster.settle()
    cluster.end_deleted()
    cluster.advance(10)
    cluster.settle()
    cluster.start_all()
    cluster.start_driver()
    for _ in range(3):
        cluster.edit(suspend=True)
        cluster.settle()
        cluster.train(0, "Suspended")
        cluster.settle()
        cluster.end_deleted()
        cluster.settle()
        cluster.edit(suspend=False)
        cluster.up()
    assert cluster.number > 7
    assert cluster.status.phase is Phase.RUNNING
    assert drivers(cluster).recent_restarts == 0


def test_pods_are_replaced_by_the_revision_they_were_made_from(cluster: SimulatedCluster) -> None:
    cluster.runtime["spec"]["image"] = "longboat-runtime:2"  # type: ignore[index]
    cluster.settle()
    cluster.delete_pod("sums-reward-default-0-a0", grace=0)
    cluster.settle()
    cluster.advance(10)
    cluster.settle()
    body = cluster.children["Pod"]["sums-reward-default-0-a1"]
    assert {c["image"] for c in body["spec"]["containers"]} == {"longboat-runtime:1"}
    assert body["metadata"]["annotations"]["longboat.dev/revision"] == "sums-runtime-1"


def test_history_is_bounded_and_counts_are_not() -> None:
    running = SimulatedCluster(spec_of(rollout={"replicas": 8}, failurePolicy={"maxRolloutRestarts": 1000}))
    running.up()
    for _ in range(3):
        for pod in running.pods(Role.ROLLOUT):
            running.crash(pod["metadata"]["name"])
        running.settle()
    assert running.status.restarts == 24
    assert len(running.status.restart_history or []) == 10


def test_the_end_of_the_ray_head_is_named_until_rounds_run_again() -> None:
    cluster = SimulatedCluster()
    cluster.up()
    cluster.advance(60)
    pod = cluster.children["Pod"]["sums-driver-0-a0"]
    ended = {"exitCode": 137, "reason": "OOMKilled", "finishedAt": stamp(cluster.now)}
    head = {"name": "ray-head", "restartCount": 1, "lastState": {"terminated": ended}}
    pod["status"]["initContainerStatuses"] = [head]
    ready = pod["status"]["conditions"]
    pod["status"]["conditions"] = [c if c["type"] != "Ready" else {"type": "Ready", "status": "False"} for c in ready]
    cluster.advance(2)
    cluster.settle()
    running = find(cluster.status.conditions, ConditionType.RUNNING)
    assert running
    assert (running.status, running.reason) == ("False", Reason.HEAD_LOST)
    assert "container ray-head went over its memory limit" in running.message
    assert cluster.status.phase is Phase.RESTARTING
    cluster.advance(700)
    cluster.settle()
    assert cluster.status.phase is Phase.RESTARTING, "a job that has trained has no start deadline"
    pod["status"]["conditions"] = ready
    cluster.settle()
    assert cluster.status.phase is Phase.RUNNING
    # What fails later has another cause.
    cluster.advance(60)
    cluster.delete_pod("sums-trainer-0-a0", grace=0)
    cluster.settle()
    running = find(cluster.status.conditions, ConditionType.RUNNING)
    assert running
    assert running.reason == Reason.RESTARTING
