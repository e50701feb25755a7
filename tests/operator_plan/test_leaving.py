"""Rollout pods that a job has to give back: they are drained, they go, others come, and nobody counts a loss."""

from __future__ import annotations

from datetime import timedelta

import pytest

from longboat_crds.base import Role
from longboat_crds.status import Phase
from longboat_operator.plan.capacity import LEAVE_SECONDS
from longboat_operator.planner import plan
from longboat_operator.reading.status import rollout_grant
from longboat_operator.reading.times import moment
from tests.operator_plan.simulated_cluster import KEY, SimulatedCluster, spec_of


def pod(index: int, attempt: int = 0) -> str:
    return f"sums-rollout-{index}-a{attempt}"


@pytest.fixture
def cluster() -> SimulatedCluster:
    """Four rollout pods that serve, and a driver that has asked for nothing yet."""
    running = SimulatedCluster(spec_of(rollout={"replicas": 4}))
    running.up()
    running.train(3)
    running.settle()
    return running


def told(cluster: SimulatedCluster, *reasons: str) -> list[str]:
    return [event.message for event in cluster.events if event.reason in reasons]


def rollout(cluster: SimulatedCluster) -> tuple[int, int]:
    roles = cluster.status.roles
    assert roles
    assert roles.rollout
    return roles.rollout.ready, roles.rollout.desired


def test_without_a_demand_a_job_has_what_its_spec_says(cluster: SimulatedCluster) -> None:
    granted = rollout_grant(cluster.status)
    assert granted
    assert (granted.answers, granted.replicas, granted.leaving) == (None, 4, None)
    assert rollout(cluster) == (4, 4)


def test_pods_leave_once_the_driver_has_drained_them(cluster: SimulatedCluster) -> None:
    cluster.ask(2, giveFirst=[pod(0)], reason="short rounds wait for nothing")
    cluster.settle()
    assert cluster.leaving == [pod(0), pod(3)]
    assert len(cluster.rollout_pods()) == 4, "what runs there has to move first"
    assert rollout(cluster) == (2, 2), "a pod that leaves is neither missing nor wanted"
    assert cluster.status.phase is Phase.RUNNING
    cluster.ask(2, number=1, drained=[pod(0)])
    cluster.settle()
    assert cluster.rollout_pods() == [pod(1), pod(2), pod(3)]
    cluster.ask(2, number=1, drained=[pod(0), pod(3)])
    cluster.settle()
    cluster.end_deleted()
    cluster.settle()
    assert cluster.rollout_pods() == [pod(1), pod(2)]
    assert cluster.leaving == []
    assert (cluster.status.restarts, cluster.status.restart_history) == (0, None)
    assert told(cluster, "Scaled", "Drained") == [
        "Role rollout from 4 to 2 pods: short rounds wait for nothing",
        f"Role rollout, pod {pod(0)} is drained and is deleted.",
        f"Role rollout, pod {pod(3)} is drained and is deleted.",
    ]
    assert plan(cluster.observed(), cluster.now).empty


def shrunk(cluster: SimulatedCluster, replicas: int, *first: str) -> None:
    """The driver gives pods back, and they are gone."""
    cluster.ask(replicas, giveFirst=list(first))
    cluster.settle()
    cluster.ask(replicas, giveFirst=list(first), drained=cluster.leaving)
    cluster.settle()
    cluster.end_deleted()
    cluster.settle()
    assert cluster.leaving == []


def test_new_pods_take_the_lowest_free_indices_under_new_names(cluster: SimulatedCluster) -> None:
    shrunk(cluster, 1, pod(0), pod(1), pod(3))
    assert cluster.rollout_pods() == [pod(2)]
    cluster.ask(3)
    cluster.settle()
    assert cluster.rollout_pods() == [pod(0, 1), pod(1, 1), pod(2)]


def test_a_word_about_a_pod_that_is_gone_never_meets_its_successor(cluster: SimulatedCluster) -> None:
    shrunk(cluster, 1)
    cluster.ask(4, drained=[pod(3)])
    cluster.settle()
    cluster.start_all()
    cluster.ask(0, drained=[pod(3), pod(0)])
    cluster.settle()
    assert [name for name in cluster.rollout_pods() if name.startswith("sums-rollout-3")] == [pod(3, 1)]
    assert pod(0) not in cluster.rollout_pods()


def test_all_pods_may_leave(cluster: SimulatedCluster) -> None:
    shrunk(cluster, 0)
    assert cluster.rollout_pods() == []
    assert rollout(cluster) == (0, 0)
    assert cluster.status.phase is Phase.RUNNING
    cluster.ask(1)
    cluster.settle()
    assert cluster.rollout_pods() == [pod(0, 1)]


def test_a_pod_that_is_not_drained_goes_at_its_deadline(cluster: SimulatedCluster) -> None:
    cluster.ask(3)
    cluster.settle()
    granted = rollout_grant(cluster.status)
    assert granted
    assert granted.leaving
    assert moment(granted.leaving[0].deadline) == cluster.now + timedelta(seconds=LEAVE_SECONDS)
    cluster.advance(100)
    cluster.ask(2)
    cluster.settle()
    assert cluster.leaving == [pod(3), pod(2)]
    assert plan(cluster.observed(), cluster.now).look_again_seconds == LEAVE_SECONDS - 100
    cluster.advance(LEAVE_SECONDS - 100)
    cluster.settle()
    assert cluster.rollout_pods() == [pod(0), pod(1), pod(2)]
    assert told(cluster, "DrainDeadlineMissed") == [
        f"Role rollout, pod {pod(3)} was not drained by its deadline and is deleted."
    ]


def test_a_pod_that_never_got_ready_goes_at_once(cluster: SimulatedCluster) -> None:
    cluster.edit(rollout={"replicas": 5})
    cluster.settle()
    assert len(cluster.rollout_pods()) == 5
    cluster.edit(rollout={"replicas": 4})
    cluster.settle()
    assert cluster.rollout_pods() == [pod(index) for index in range(4)]
    assert cluster.status.restarts == 0


def test_without_a_driver_nobody_waits_for_a_drain(cluster: SimulatedCluster) -> None:
    cluster.crash("sums-driver-0-a0")
    cluster.edit(rollout={"replicas": 2})
    cluster.settle()
    assert cluster.rollout_pods() == [pod(0), pod(1)]


def test_what_another_incarnation_has_drained_does_not_count(cluster: SimulatedCluster) -> None:
    cluster.ask(3)
    cluster.settle()
    cluster.ask(3, incarnation=cluster.number - 1, drained=[pod(3)])
    cluster.settle()
    assert len(cluster.rollout_pods()) == 4
    assert cluster.leaving == [], "its demand for three is ignored too"


def test_a_pod_is_taken_back_before_it_is_drained(cluster: SimulatedCluster) -> None:
    cluster.ask(3)
    cluster.settle()
    cluster.crash(pod(3))
    cluster.start(pod(3))
    cluster.settle()
    cluster.ask(4)
    cluster.settle()
    assert cluster.leaving == []
    assert rollout(cluster) == (4, 4)
    assert cluster.rollout_pods() == [pod(index) for index in range(4)]
    assert cluster.status.restarts == 0, "what failed while it was to leave is no failure"
    cluster.crash(pod(3))
    cluster.settle()
    assert cluster.status.restarts == 1


@pytest.mark.parametrize("capacity_first", [True, False])
def test_a_pod_that_vanishes_while_it_leaves_is_no_loss(cluster: SimulatedCluster, capacity_first: bool) -> None:
    cluster.ask(3)
    cluster.settle()
    cluster.delete_pod(pod(3), grace=0)
    if capacity_first:
        cluster.grant()
    cluster.carry_out(cluster.planned()[1])
    cluster.settle()
    assert (cluster.status.restarts, cluster.leaving) == (0, [])


def test_its_place_is_taken_by_another_at_once(cluster: SimulatedCluster) -> None:
    cluster.ask(3, giveFirst=[pod(1)])
    cluster.settle()
    cluster.delete_pod(pod(1), grace=0)
    cluster.ask(4)
    cluster.settle()
    assert pod(1, 1) in cluster.rollout_pods()
    assert cluster.status.restarts == 0


def test_a_lost_pod_is_not_replaced_when_the_job_is_to_have_fewer(cluster: SimulatedCluster) -> None:
    cluster.evict(pod(1))
    cluster.settle()
    cluster.ask(3)
    cluster.settle()
    cluster.advance(60)
    cluster.settle()
    assert cluster.leaving == []
    assert cluster.rollout_pods() == [pod(0), pod(2), pod(3)]


def test_neither_plan_touches_what_the_other_has_written(cluster: SimulatedCluster) -> None:
    cluster.ask(2)
    _, jobs = cluster.planned()
    _, capacities = cluster.planned(KEY.capacity)
    version = cluster.version
    cluster.carry_out(capacities, version=version)
    cluster.carry_out(jobs, version=version)
    granted = rollout_grant(cluster.status)
    assert granted
    assert granted.answers == 1
    cluster.settle()
    assert cluster.status.allocation
    assert cluster.status.allocation.rollout_replicas == 2
    assert cluster.number == 1


def test_an_operator_that_starts_anew_grants_the_same(cluster: SimulatedCluster) -> None:
    cluster.ask(2)
    cluster.settle()
    before = rollout_grant(cluster.status)
    assert cluster.job
    cluster.forget()
    cluster.advance(50)
    cluster.settle()
    assert rollout_grant(cluster.status) == before
    del cluster.job["status"]["allocation"]["grant"]
    cluster.settle()
    again = rollout_grant(cluster.status)
    assert again
    assert before
    assert (again.answers, again.replicas, [p.pod for p in again.leaving or ()]) == (1, 2, [pod(3), pod(2)])
    assert len(cluster.rollout_pods()) == 4


def test_a_job_of_an_operator_that_granted_nothing_keeps_its_pods(cluster: SimulatedCluster) -> None:
    assert cluster.job
    del cluster.job["status"]["allocation"]["grant"]
    cluster.edit(rollout={"replicas": 1})
    cluster.carry_out(cluster.planned()[1])
    cluster.carry_out(cluster.planned()[1])
    assert len(cluster.rollout_pods()) == 4
    assert rollout(cluster) == (4, 4)


def test_no_pod_is_made_before_the_grant() -> None:
    cluster = SimulatedCluster()
    for _ in range(5):
        cluster.carry_out(cluster.planned()[1])
    assert cluster.pods() == []
    cluster.settle()
    assert len(cluster.pods(Role.ROLLOUT)) == 2


def test_a_suspended_job_gives_its_grant_back_and_gets_another_when_it_resumes(cluster: SimulatedCluster) -> None:
    cluster.ask(2)
    cluster.settle()
    cluster.edit(suspend=True)
    cluster.settle()
    assert len(cluster.leaving) == 2, "its driver may be draining them"
    cluster.train(0, "Suspended")
    cluster.settle()
    cluster.end_deleted()
    cluster.settle()
    assert cluster.status.phase is Phase.SUSPENDED
    assert rollout_grant(cluster.status) is None
    cluster.edit(suspend=False)
    cluster.settle()
    granted = rollout_grant(cluster.status)
    assert granted
    assert (granted.answers, granted.replicas) == (None, 4), "the last driver's demand is over"
    assert cluster.rollout_pods() == [pod(index, 1) for index in range(4)]


def test_a_finished_job_has_no_grant(cluster: SimulatedCluster) -> None:
    cluster.train(97, "Succeeded")
    cluster.settle()
    assert cluster.status.phase is Phase.SUCCEEDED
    assert rollout_grant(cluster.status) is None


def test_a_demand_beyond_the_bounds_is_told_when_the_bound_begins_to_hold(cluster: SimulatedCluster) -> None:
    cluster.edit(rollout={"minReplicas": 1})
    for replicas in (6, 7, 6):
        cluster.ask(replicas, reason="engines preempt")
        cluster.settle()
    assert told(cluster, "DemandLimited") == [
        "The driver asks for 6 rollout pods (engines preempt) and gets 4, the bound of rollout.replicas."
    ]
    cluster.ask(4)
    cluster.settle()
    cluster.ask(0)
    cluster.settle()
    assert told(cluster, "DemandLimited")[1:] == [
        "The driver asks for 0 rollout pods and gets 1, the bound of rollout.minReplicas."
    ]


RESHAPE = {"step": 4, "tensorParallel": 2, "reason": "preemptions rose from 3 to 9", "seconds": "15.2"}


def report(cluster: SimulatedCluster, *reshapes: dict[str, object]) -> None:
    cluster.drive(training={"incarnation": cluster.number, "state": "Running", "step": 5, "reshapes": list(reshapes)})
    cluster.settle()
    cluster.forget()


def test_each_reshape_is_told_once(cluster: SimulatedCluster) -> None:
    report(cluster, RESHAPE)
    report(cluster, RESHAPE)
    failed = RESHAPE | {"step": 5, "tensorParallel": 1, "failure": "no memory for the KV cache"}
    report(cluster, RESHAPE | {"seconds": "15.3"}, failed)
    report(cluster, failed)
    assert told(cluster, "Reshaped", "ReshapeFailed") == [
        "Engines have tensorParallel 2 after step 4, in 15.2 s: preemptions rose from 3 to 9",
        "Engines keep tensorParallel 1 after step 5: no memory for the KV cache (preemptions rose from 3 to 9)",
    ]
    assert plan(cluster.observed(), cluster.now).empty
