"""A job's minimum of pods: how it is counted, how long a job waits for it, and how its pods are given back."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longboat_crds.base import Role
from longboat_crds.reasons import ConditionType, Reason
from longboat_crds.status import Phase, Placement
from longboat_operator.model import Contention, DeleteObject, Plan
from longboat_operator.plan.losses import UNREADY_SECONDS
from longboat_operator.plan.placement import FIRST_WAIT_SECONDS, LONGEST_WAIT_SECONDS, wait_seconds
from longboat_operator.planner import plan
from longboat_operator.reading.conditions import find
from longboat_operator.reading.status import rollout_grant
from longboat_operator.rejections import UNANSWERED
from tests.operator_plan.simulated_cluster import SimulatedCluster, runtime_of, spec_of

POLICY = {
    "startDeadlineSeconds": 1000,
    "placementTimeoutSeconds": 600,
    "recoveryTimeoutSeconds": 1800,
    "backoffSeconds": 0,
}
BEFORE_ANY = (-(2**31), "", "")


def waiting_spec(**changes: Any) -> dict[str, Any]:
    return spec_of(failurePolicy=POLICY, **changes)


@pytest.fixture
def cluster() -> SimulatedCluster:
    """All pods are there; none has a node."""
    created = SimulatedCluster(waiting_spec())
    created.settle()
    return created


def placement(cluster: SimulatedCluster) -> Placement:
    assert cluster.status.placement
    return cluster.status.placement


def message(cluster: SimulatedCluster, kind: ConditionType) -> str:
    found = find(cluster.status.conditions, kind)
    assert found
    return found.message


def names(cluster: SimulatedCluster, *roles: Role) -> list[str]:
    return [pod["metadata"]["name"] for role in roles or tuple(Role) for pod in cluster.pods(role)]


def start(cluster: SimulatedCluster, *pods: str) -> None:
    for name in pods:
        cluster.start(name)
    cluster.settle()


def pass_time(cluster: SimulatedCluster, seconds: float) -> None:
    """Time goes by with plans when they ask for one."""
    while seconds > 0:
        cluster.settle()
        wait = plan(cluster.observed(), cluster.now).look_again_seconds
        step = seconds if wait is None else min(wait, seconds)
        cluster.advance(step)
        seconds -= step
    cluster.settle()


def release(cluster: SimulatedCluster) -> None:
    """The job is half placed for too long, and its pods end."""
    start(cluster, *names(cluster, Role.DRIVER))
    pass_time(cluster, 1200)
    cluster.settle()
    cluster.end_deleted()
    cluster.settle()


# The minimum.


@pytest.mark.parametrize(
    ("rollout", "needed"),
    [
        ({"replicas": 1}, 5),
        ({"replicas": 8}, 5),
        ({"replicas": 8, "minReplicas": 3}, 7),
        ({"replicas": 2, "minReplicas": 2}, 6),
    ],
)
def test_what_the_minimum_is(rollout: dict[str, int], needed: int) -> None:
    cluster = SimulatedCluster(waiting_spec(rollout=rollout))
    cluster.settle()
    assert placement(cluster).minimum == needed
    assert message(cluster, ConditionType.RUNNING).startswith(
        f"0 of {needed} pods of the minimum have nodes; driver 0/1"
    )


def test_each_reward_pool_needs_a_pod() -> None:
    pools = [{"name": "code", "replicas": 3}, {"name": "math", "replicas": 2}]
    rewards = [{"name": pool["name"], "kind": "ReasoningGym", "pool": pool["name"]} for pool in pools]
    cluster = SimulatedCluster(waiting_spec(rewards=rewards, rewardPools=pools))
    cluster.settle()
    assert placement(cluster).minimum == 1 + 1 + 2 + 2
    for name in names(cluster, Role.DRIVER, Role.ROLLOUT, Role.TRAINER):
        cluster.schedule(name)
    for name in ("sums-reward-code-0-a0", "sums-reward-code-1-a0"):
        cluster.schedule(name)
    cluster.settle()
    assert placement(cluster).placed == 5, "two pods of one pool are no pod of the other"
    cluster.schedule("sums-reward-math-1-a0")
    cluster.settle()
    assert cluster.status.phase is Phase.STARTING


def test_rollout_pods_beyond_the_minimum_are_not_waited_for() -> None:
    cluster = SimulatedCluster(waiting_spec(rollout={"replicas": 4}))
    cluster.settle()
    start(cluster, *names(cluster, Role.DRIVER, Role.REWARD, Role.TRAINER), "sums-rollout-3-a0")
    cluster.start_driver()
    pass_time(cluster, 86_400)
    assert cluster.status.phase is Phase.RUNNING
    assert cluster.status.placement is None


# How long a job waits.


def test_a_job_without_nodes_waits_for_ever_and_keeps_its_pods(cluster: SimulatedCluster) -> None:
    for name in names(cluster):
        cluster.unschedulable(name)
    pods = names(cluster)
    pass_time(cluster, 30 * 86_400)
    assert (cluster.status.phase, cluster.status.reason) == (Phase.QUEUED, Reason.POD_UNSCHEDULABLE)
    assert names(cluster) == pods
    assert plan(cluster.observed(), cluster.now).look_again_seconds is None


def test_the_clock_starts_anew_with_each_newly_placed_pod_of_the_minimum(cluster: SimulatedCluster) -> None:
    cluster.contention = Contention(BEFORE_ANY)
    start(cluster, "sums-driver-0-a0")
    for name in ("sums-trainer-0-a0", "sums-rollout-0-a0", "sums-reward-default-0-a0"):
        pass_time(cluster, 599)
        assert not placement(cluster).release_time
        start(cluster, name)
    pass_time(cluster, 300)
    start(cluster, "sums-rollout-1-a0")
    pass_time(cluster, 299)
    assert not placement(cluster).release_time
    pass_time(cluster, 1)
    assert placement(cluster).release_time, "a rollout pod beyond the minimum changes nothing"


def test_the_first_in_rank_has_two_periods_and_the_others_one(cluster: SimulatedCluster) -> None:
    start(cluster, "sums-driver-0-a0")
    cluster.contention = Contention(BEFORE_ANY)
    assert plan(cluster.observed(), cluster.now).look_again_seconds == 600
    cluster.contention = Contention((2**31, "", ""))
    assert plan(cluster.observed(), cluster.now).look_again_seconds == 1200
    cluster.contention = Contention()
    assert plan(cluster.observed(), cluster.now).look_again_seconds == 1200
    pass_time(cluster, 1199)
    assert cluster.status.reason == Reason.PODS_STARTING
    pass_time(cluster, 1)
    assert (cluster.status.phase, cluster.status.reason) == (Phase.QUEUED, Reason.PODS_RELEASED)
    assert "only 1 of 5 pods of the minimum had nodes for 1200 s" in message(cluster, ConditionType.SCHEDULED)


def test_priority_ranks_before_age(cluster: SimulatedCluster) -> None:
    for pod in cluster.pods():
        pod["spec"]["priority"] = 100
    start(cluster, "sums-driver-0-a0")
    assert placement(cluster).priority == 100
    cluster.contention = Contention((-50, "2020-01-01T00:00:00Z", "other"))
    assert plan(cluster.observed(), cluster.now).look_again_seconds == 1200
    cluster.contention = Contention((-100, "", ""))
    assert plan(cluster.observed(), cluster.now).look_again_seconds == 600


def test_a_restarted_operator_goes_on_counting(cluster: SimulatedCluster) -> None:
    start(cluster, "sums-driver-0-a0")
    pass_time(cluster, 1000)
    cluster.forget()
    assert plan(cluster.observed(), cluster.now).look_again_seconds == 200


def test_time_without_an_operator_releases_no_half_placed_job(cluster: SimulatedCluster) -> None:
    start(cluster, "sums-driver-0-a0")
    cluster.forget()
    cluster.advance(86_400)
    cluster.settle()
    assert placement(cluster).release_time is None
    pass_time(cluster, 1199)
    assert placement(cluster).release_time is None
    pass_time(cluster, 1)
    assert placement(cluster).release_time


def test_pods_without_nodes_go_if_they_use_up_a_quota_that_refuses_another_job(cluster: SimulatedCluster) -> None:
    for pod in cluster.pods():
        pod["spec"]["schedulingGates"] = [{"name": "example.com/a"}, {"name": "example.com/b"}]
    pass_time(cluster, 3600)
    assert cluster.status.reason == Reason.SCHEDULING_GATED
    assert (
        message(cluster, ConditionType.SCHEDULED)
        == "pod sums-driver-0-a0: waits for scheduling gates example.com/a, example.com/b"
    )
    cluster.contention = Contention(quota_refuses=True)
    cluster.settle()
    assert not cluster.pods()
    assert "used up a quota" in message(cluster, ConditionType.SCHEDULED)


# The start deadline.


def test_the_start_deadline_adds_up_the_time_in_which_all_of_the_minimum_has_nodes(cluster: SimulatedCluster) -> None:
    for seconds in (400, 300):
        for name in names(cluster):
            cluster.schedule(name)
        cluster.settle()
        pass_time(cluster, seconds)
        cluster.forget()
        cluster.delete_pod(names(cluster, Role.TRAINER)[0], grace=0)
        cluster.settle()
        pass_time(cluster, 500)
    assert placement(cluster).start_seconds == 700
    release(cluster)
    pass_time(cluster, 2 * FIRST_WAIT_SECONDS)
    assert (cluster.status.phase, placement(cluster).start_seconds) == (Phase.QUEUED, 700)
    for name in names(cluster):
        cluster.schedule(name)
    cluster.settle()
    assert plan(cluster.observed(), cluster.now).look_again_seconds == 300
    cluster.unschedulable(names(cluster, Role.ROLLOUT)[1])
    pass_time(cluster, 299)
    assert cluster.status.phase is Phase.STARTING
    pass_time(cluster, 1)
    assert (cluster.status.phase, cluster.status.reason) == (Phase.FAILED, Reason.START_DEADLINE_EXCEEDED)
    text = message(cluster, ConditionType.FAILED)
    assert "within 1000 s" in text
    assert "rollout 0/2" in text
    assert cluster.status.placement is None


def test_a_driver_that_reports_nothing_falls_under_the_start_deadline_and_one_that_loads_does_not(
    cluster: SimulatedCluster,
) -> None:
    start(cluster, *names(cluster))
    pass_time(cluster, 999)
    assert cluster.status.phase is Phase.STARTING
    cluster.tokens += 1
    cluster.drive(demand={"incarnationRequest": "token-1"})
    cluster.settle()
    cluster.train(0, "Starting")
    pass_time(cluster, 86_400)
    assert cluster.status.phase is Phase.STARTING
    cluster.crash("sums-trainer-0-a0")
    pass_time(cluster, 1)
    assert cluster.status.phase is Phase.FAILED


def test_time_without_an_operator_counts_for_no_start_deadline(cluster: SimulatedCluster) -> None:
    start(cluster, *names(cluster))
    pass_time(cluster, 900)
    cluster.tokens += 1
    cluster.drive(demand={"incarnationRequest": "token-1"})
    cluster.advance(86_400)
    cluster.forget()
    cluster.settle()
    assert cluster.number == 1, "the driver waited for its number"
    assert cluster.status.phase is Phase.STARTING
    pass_time(cluster, 999)
    assert cluster.status.phase is Phase.STARTING
    pass_time(cluster, 1)
    assert cluster.status.phase is Phase.FAILED


def test_a_job_with_a_committed_step_is_never_failed_for_being_slow(cluster: SimulatedCluster) -> None:
    cluster.drive(checkpoint={"incarnation": 0, "step": 1})
    for name in names(cluster):
        cluster.schedule(name)
    pass_time(cluster, 86_400)
    assert cluster.status.phase is Phase.STARTING


def test_a_suspension_gives_the_whole_start_deadline_again(cluster: SimulatedCluster) -> None:
    for name in names(cluster):
        cluster.schedule(name)
    pass_time(cluster, 900)
    cluster.edit(suspend=True)
    cluster.settle()
    cluster.end_deleted()
    cluster.settle()
    assert cluster.status.phase is Phase.SUSPENDED
    assert cluster.status.placement is None
    cluster.edit(suspend=False)
    cluster.settle()
    for name in names(cluster):
        cluster.schedule(name)
    cluster.settle()
    assert plan(cluster.observed(), cluster.now).look_again_seconds == 1000


# The release.


def test_a_release_is_no_suspension(cluster: SimulatedCluster) -> None:
    cluster.edit(runtimeRef={"renewOnResume": True})
    cluster.runtime = runtime_of(image="longboat-runtime:2")
    release(cluster)
    assert not cluster.pods()
    assert rollout_grant(cluster.status) is None
    assert cluster.status.suspend_time is None
    assert cluster.status.restarts == 0
    assert not cluster.status.restart_history
    wait = plan(cluster.observed(), cluster.now).look_again_seconds
    assert wait is not None
    assert FIRST_WAIT_SECONDS <= wait <= 2 * FIRST_WAIT_SECONDS
    pass_time(cluster, wait + 1)
    assert rollout_grant(cluster.status)
    assert {pod["metadata"]["labels"]["longboat.dev/attempt"] for pod in cluster.pods()} == {"1"}
    assert {c["image"] for pod in cluster.pods() for c in pod["spec"]["containers"]} == {"longboat-runtime:1"}
    assert cluster.status.restarts == 0
    events = [event.reason for event in cluster.events]
    assert events.count("PodsReleased") == 1
    assert events.count("Started") == 1


def test_gated_pods_keep_their_turn_and_a_lifted_gate_ends_the_wait(cluster: SimulatedCluster) -> None:
    gated = names(cluster, Role.TRAINER)
    for name in gated:
        cluster.children["Pod"][name]["spec"]["schedulingGates"] = [{"name": "example.com/queue"}]
    release(cluster)
    assert names(cluster) == gated
    assert cluster.status.reason == Reason.PODS_RELEASED
    del cluster.children["Pod"][gated[0]]["spec"]["schedulingGates"]
    cluster.settle()
    assert len(cluster.pods()) == 6
    assert set(gated) < set(names(cluster))
    assert cluster.status.restarts == 0


def test_releases_in_a_row_wait_longer_and_longer_until_the_whole_minimum_has_nodes(cluster: SimulatedCluster) -> None:
    waits = []
    for _ in range(3):
        release(cluster)
        waits.append(plan(cluster.observed(), cluster.now).look_again_seconds or 0)
        pass_time(cluster, waits[-1] + 1)
    assert waits == sorted(waits)
    assert waits[2] >= 4 * FIRST_WAIT_SECONDS
    for name in names(cluster):
        cluster.schedule(name)
    cluster.settle()
    assert placement(cluster).releases is None


@given(st.text(), st.integers(1, 1000))
def test_the_wait_doubles_up_to_a_bound_and_jobs_differ(uid: str, releases: int) -> None:
    wait = wait_seconds(uid, releases)
    least = min(FIRST_WAIT_SECONDS * 2 ** min(releases - 1, 10), LONGEST_WAIT_SECONDS)
    assert least <= wait < 2 * least
    assert wait == wait_seconds(uid, releases)
    assert wait != wait_seconds(f"{uid}x", releases)


@pytest.mark.parametrize("cut", range(12))
def test_a_release_that_is_cut_short_anywhere_is_carried_through_and_counts_nothing(cut: int) -> None:
    cluster = SimulatedCluster(waiting_spec())
    cluster.settle()
    start(cluster, "sums-driver-0-a0")
    cluster.advance(1200)
    for _ in range(4):
        cluster.reconcile(cut)
        cluster.forget()
        cluster.end_deleted()
    cluster.settle()
    cluster.end_deleted()
    cluster.settle()
    assert cluster.status.reason == Reason.PODS_RELEASED
    assert not cluster.pods()
    assert cluster.status.restarts == 0
    assert cluster.status.placement
    assert cluster.status.placement.releases == 1


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ('admission webhook "keep.example.com" denied the request', Reason.POD_REFUSED),
        (f"{UNANSWERED}: failed calling webhook", Reason.REQUEST_FAILED),
    ],
)
def test_a_release_that_is_refused_says_so(cluster: SimulatedCluster, answer: str, reason: Reason) -> None:
    start(cluster, *names(cluster, Role.DRIVER))
    cluster.advance(1200)
    cluster.reconcile()
    answers = {name: f"Pod {name}: {answer}" for name in names(cluster)}
    made = plan(dataclasses.replace(cluster.observed(), rejections=answers), cluster.now)
    cluster.carry_out(Plan(tuple(each for each in made.actions if not isinstance(each, DeleteObject))))
    assert cluster.status.reason == Reason.PODS_RELEASED
    assert answer in message(cluster, ConditionType.ROLES_READY)
    degraded = find(cluster.status.conditions, ConditionType.DEGRADED)
    assert degraded
    assert (degraded.status, degraded.reason) == ("True", reason)
    assert reason in [event.reason for event in cluster.events]


def test_pods_that_finalizers_keep_hold_up_no_release(cluster: SimulatedCluster) -> None:
    cluster.keep("example.com/audit")
    release(cluster)
    assert placement(cluster).retry_time
    assert "example.com/audit" in message(cluster, ConditionType.ROLES_READY)
    pass_time(cluster, 2 * FIRST_WAIT_SECONDS)
    cluster.start_all()
    cluster.start_driver()
    cluster.settle()
    assert cluster.status.phase is Phase.RUNNING
    assert cluster.status.restarts == 0


# A job that runs.


@pytest.fixture
def running() -> SimulatedCluster:
    cluster = SimulatedCluster(waiting_spec())
    cluster.up()
    cluster.train(7)
    cluster.settle()
    return cluster


def test_a_running_job_ends_its_driver_first_and_then_gives_everything_back(running: SimulatedCluster) -> None:
    running.delete_pod("sums-reward-default-0-a0", grace=0)
    pass_time(running, 1799)
    assert running.status.phase is Phase.RESTARTING
    restarts, number = running.status.restarts, running.number
    pass_time(running, 1)
    assert (running.status.phase, running.status.reason) == (Phase.QUEUED, Reason.PODS_RELEASED)
    ending = [pod["metadata"]["name"] for pod in running.pods() if "deletionTimestamp" in pod["metadata"]]
    assert ending == ["sums-driver-0-a0"], "all ranks live, so the driver can save the last step"
    running.train(0, checkpoint={"incarnation": number, "step": 7})
    running.end_deleted()
    running.settle()
    running.end_deleted()
    running.settle()
    assert not running.pods()
    assert running.number == number + 1, "whatever the old driver still writes doesn't count"
    assert running.status.restarts == restarts
    assert rollout_grant(running.status) is None
    pass_time(running, 2 * FIRST_WAIT_SECONDS)
    running.start_all()
    pass_time(running, 86_400)
    assert running.status.phase is Phase.STARTING, "the deadline doesn't apply any more"
    running.start_driver()
    running.settle()
    assert running.status.phase is Phase.RUNNING
    assert running.status.placement is None


def test_recovery_is_counted_from_the_first_pod_that_is_missing(running: SimulatedCluster) -> None:
    running.delete_pod("sums-trainer-0-a0", grace=0)
    pass_time(running, 900)
    running.delete_pod("sums-trainer-1-a0", grace=0)
    pass_time(running, 300)
    running.start("sums-trainer-1-a1")
    running.settle()
    assert plan(running.observed(), running.now).look_again_seconds == 600
    running.start("sums-trainer-0-a1")
    running.settle()
    assert running.status.placement is None


def test_a_stuck_pod_has_a_node_and_does_not_count_as_placed(running: SimulatedCluster) -> None:
    """It can't serve any more (`PodStuck`), long before it is deleted."""
    running.hang("sums-trainer-0-a0")
    running.settle()
    assert running.status.placement is None, "its container may still be restarted"
    running.advance(UNREADY_SECONDS)
    running.reconcile()
    pod = running.children["Pod"]["sums-trainer-0-a0"]
    assert pod["spec"]["nodeName"]
    assert "deletionTimestamp" not in pod["metadata"]
    assert (placement(running).placed, placement(running).minimum) == (4, 5)


def test_a_running_job_that_lost_a_pod_before_its_operator_went_away_keeps_the_others(
    running: SimulatedCluster,
) -> None:
    running.delete_pod("sums-trainer-0-a0", grace=0)
    running.settle()
    running.forget()
    running.advance(86_400)
    running.settle()
    assert placement(running).release_time is None
    running.start("sums-trainer-0-a1")
    running.settle()
    assert running.status.placement is None


def test_a_running_job_that_loses_everything_waits_with_its_new_pods(running: SimulatedCluster) -> None:
    for name in names(running):
        running.delete_pod(name, grace=0)
    pass_time(running, 1800)
    assert running.status.phase is Phase.QUEUED
    pods = names(running)
    assert len(pods) == 6
    pass_time(running, 86_400)
    assert names(running) == pods


def test_rounds_that_run_without_a_pod_of_the_minimum_count_as_a_job_that_lacks_it() -> None:
    cluster = SimulatedCluster(waiting_spec(rollout={"replicas": 2, "minReplicas": 2}))
    cluster.up()
    cluster.delete_pod("sums-rollout-1-a0", grace=0)
    pass_time(cluster, 1799)
    assert cluster.status.phase is Phase.RUNNING
    pass_time(cluster, 1)
    assert cluster.status.phase is Phase.QUEUED


# What else may happen meanwhile.


def test_a_job_may_be_suspended_and_resumed_while_it_waits_to_try_again(cluster: SimulatedCluster) -> None:
    release(cluster)
    cluster.edit(suspend=True)
    cluster.settle()
    assert cluster.status.phase is Phase.SUSPENDED
    cluster.edit(suspend=False)
    cluster.settle()
    assert len(cluster.pods()) == 6, "somebody has asked for it now"


def test_a_job_may_be_suspended_while_its_pods_are_released(running: SimulatedCluster) -> None:
    running.delete_pod("sums-trainer-0-a0", grace=0)
    pass_time(running, 1800)
    running.edit(suspend=True)
    for _ in range(4):
        running.settle()
        running.end_deleted()
    running.settle()
    assert running.status.phase is Phase.SUSPENDED
    assert running.status.placement is None


def test_an_edited_timeout_counts_at_once(cluster: SimulatedCluster) -> None:
    start(cluster, "sums-driver-0-a0")
    pass_time(cluster, 500)
    cluster.edit(failurePolicy={"placementTimeoutSeconds": 250})
    cluster.settle()
    assert placement(cluster).release_time


def test_a_job_that_an_older_operator_served_starts_to_count_now(cluster: SimulatedCluster) -> None:
    start(cluster, "sums-driver-0-a0")
    assert cluster.job
    del cluster.job["status"]["placement"]
    cluster.job["status"] |= {"phase": "Starting"}
    cluster.advance(86_400)
    cluster.settle()
    assert cluster.status.phase is Phase.QUEUED
    assert plan(cluster.observed(), cluster.now).look_again_seconds == 1200


def test_a_released_job_whose_status_an_older_operator_has_written_starts_again(cluster: SimulatedCluster) -> None:
    """It knows no placement, and drops it."""
    release(cluster)
    assert cluster.job
    del cluster.job["status"]["placement"]
    cluster.settle()
    assert len(cluster.pods()) == 6


def test_an_unreadable_spec_releases_nothing_more(cluster: SimulatedCluster) -> None:
    start(cluster, "sums-driver-0-a0")
    cluster.edit(futureField={"x": 1})
    pass_time(cluster, 86_400)
    assert len(cluster.pods()) == 6


def test_plans_only_read_a_summary_of_other_jobs(cluster: SimulatedCluster) -> None:
    start(cluster, "sums-driver-0-a0")
    observed = cluster.observed()
    assert plan(observed, cluster.now).empty
    assert plan(dataclasses.replace(observed, contention=Contention(BEFORE_ANY, quota_refuses=True)), cluster.now).empty
