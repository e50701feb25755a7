"""Jobs wait for room instead of failing, and give back what others could use meanwhile."""

from __future__ import annotations

import random
from typing import Any

import pytest

from longboat_crds.base import Role
from longboat_crds.reasons import Reason
from longboat_crds.status import Phase
from tests.operator_plan.shared_cluster import SharedCluster, SharingJob
from tests.operator_plan.simulated_cluster import spec_of

DAY = 86_400.0
PERIOD = 600.0


def small(trainers: int = 2, **changes: Any) -> dict[str, Any]:
    """A job of a driver, a rollout pod, a reward pod, and some trainer pods."""
    policy = {"startDeadlineSeconds": 1800, "placementTimeoutSeconds": 600} | changes.pop("failurePolicy", {})
    sizes = {"rollout": {"replicas": 1, "sampling": {"maxTokens": 16}}, "trainer": {"replicas": trainers}}
    return spec_of(**sizes, failurePolicy=policy, **changes)


def with_rollouts(replicas: int) -> dict[str, Any]:
    """A small job with two trainer pods and so many rollout pods, of which its minimum is one."""
    spec = small(2)
    return spec | {"rollout": spec["rollout"] | {"replicas": replicas}}


def ended(cluster: SharedCluster) -> bool:
    return all(job.status.phase in {Phase.SUCCEEDED, Phase.FAILED} for job in cluster.jobs)


def phases(cluster: SharedCluster) -> list[Phase | None]:
    return [job.status.phase for job in cluster.jobs]


def lift(job: SharingJob) -> None:
    """Somebody lifts the gates of all pods that the job has and will have."""
    job.gates = ()
    for pod in job.pods():
        pod["spec"].pop("schedulingGates", None)


def drawn_mix(seed: int) -> SharedCluster:
    """2 to 8 jobs, each of which fits alone, and pods of others that come and go."""
    draw = random.Random(seed)
    nodes = {f"node{number}": draw.randint(4, 8) for number in range(draw.randint(2, 4))}
    cluster = SharedCluster(nodes, quota=draw.choice([None, None, 12, 20]))
    devices = sum(nodes.values())

    def submit() -> None:
        sizes = {Role.DRIVER: 1, Role.REWARD: 1, Role.ROLLOUT: draw.randint(1, 3), Role.TRAINER: draw.randint(1, 4)}
        # One that fits alone, whatever is placed first: each node may waste less than the largest pod.
        room = devices - len(nodes) * 3 - sizes[Role.ROLLOUT] - 2
        trainers = max(1, min(draw.randint(1, 6), room // sizes[Role.TRAINER]))
        if trainers * sizes[Role.TRAINER] > room:
            sizes[Role.TRAINER] = 1
            trainers = max(1, min(trainers, room))
        cluster.submit(small(trainers), sizes=sizes, priority=draw.choice([0, 0, 100]), seconds=draw.uniform(100, 5000))

    for _ in range(draw.randint(2, 8)):
        cluster.at(draw.choice([0.0, 0.0, draw.uniform(0, 3000)]), submit)
    for _ in range(draw.randint(0, 10)):
        size, seconds = draw.randint(1, 4), draw.uniform(100, 5000)
        cluster.at(draw.uniform(0, 10_000), lambda size=size, seconds=seconds: cluster.visit(size, seconds))
    return cluster


# A tenth of the 200 mixes is enough for every change.
DECADES = [0, 1, *(pytest.param(decade, marks=pytest.mark.extended) for decade in range(2, 20))]


@pytest.mark.parametrize("decade", DECADES)
def test_whatever_jobs_meet_all_end_none_fails_and_none_holds_what_others_need(decade: int) -> None:
    for seed in range(10 * decade, 10 * decade + 10):
        cluster = drawn_mix(seed)
        cluster.run(3001)
        cluster.run(7 * DAY, until=lambda cluster=cluster: ended(cluster))
        assert set(phases(cluster)) == {Phase.SUCCEEDED}, f"seed {seed}: {phases(cluster)}"
        assert cluster.longest_hold <= 2 * PERIOD, f"seed {seed}"


def test_two_jobs_of_which_one_fits_run_one_after_the_other() -> None:
    cluster = SharedCluster({"node0": 5, "node1": 3})
    first, second = (cluster.submit(small(3), seconds=3000) for _ in range(2))
    cluster.run(DAY, until=lambda: ended(cluster))
    assert phases(cluster) == [Phase.SUCCEEDED, Phase.SUCCEEDED]
    assert 0 < cluster.longest_hold <= 2 * PERIOD
    assert [first.status.restarts, second.status.restarts] == [0, 0]


def test_a_quota_with_room_for_one_job_and_a_half_serves_both() -> None:
    cluster = SharedCluster({"node0": 100}, quota=10)
    cluster.submit(small(4), seconds=3000)
    second = cluster.submit(small(4), seconds=300)
    cluster.run(PERIOD / 2)
    assert phases(cluster) == [Phase.RUNNING, Phase.QUEUED]
    assert second.status.reason == Reason.QUOTA_EXCEEDED
    assert len(second.pods()) == 3
    cluster.run(2 * PERIOD, until=lambda: second.status.reason == Reason.PODS_RELEASED)
    assert second.status.reason == Reason.PODS_RELEASED
    cluster.run(30)
    assert not second.pods()
    cluster.run(DAY, until=lambda: ended(cluster))
    assert phases(cluster) == [Phase.SUCCEEDED, Phase.SUCCEEDED]
    assert cluster.longest_hold <= 2 * PERIOD


def test_a_running_job_that_loses_a_node_without_a_spare_gives_the_others_back_and_ends_when_there_is_another() -> None:
    cluster = SharedCluster({"node0": 3, "node1": 2})
    job = cluster.submit(small(2), seconds=5000)
    cluster.run(60)
    assert phases(cluster) == [Phase.RUNNING]
    cluster.lose("node1")
    cluster.run(900)
    assert phases(cluster) == [Phase.RESTARTING]
    counted = job.status.restarts
    other = cluster.submit(
        small(1, rounds={"steps": 10}), sizes=dict.fromkeys(Role, 0) | {Role.TRAINER: 3}, seconds=100
    )
    cluster.run(3600)
    assert phases(cluster) == [Phase.QUEUED, Phase.SUCCEEDED], "somebody else could use what was left"
    assert other.status.restarts == 0
    assert job.status.restarts == counted
    cluster.nodes["node2"] = 2
    cluster.run(DAY, until=lambda: ended(cluster))
    assert phases(cluster) == [Phase.SUCCEEDED, Phase.SUCCEEDED]
    assert cluster.longest_hold <= 2 * PERIOD


def test_a_job_that_is_resumed_into_a_full_cluster_waits_for_as_long_as_it_takes() -> None:
    cluster = SharedCluster({"node0": 5})
    job = cluster.submit(small(2, failurePolicy={"startDeadlineSeconds": 60}), seconds=5000)
    cluster.run(60)
    job.train(89)
    job.edit(suspend=True)
    cluster.touch(job)
    cluster.run(10)
    job.train(0, "Suspended", checkpoint={"incarnation": job.number, "step": 90})
    cluster.touch(job)
    cluster.run(60)
    assert phases(cluster) == [Phase.SUSPENDED]
    cluster.visit(5, DAY)
    job.edit(suspend=False)
    cluster.touch(job)
    cluster.run(DAY / 2)
    assert (job.status.phase, job.status.reason) == (Phase.QUEUED, Reason.POD_UNSCHEDULABLE)
    assert len(job.pods()) == 5, "an autoscaler may make room for them"
    cluster.run(DAY, until=lambda: ended(cluster))
    assert phases(cluster) == [Phase.SUCCEEDED]


def test_an_hour_of_gates_counts_for_no_deadline_and_keeps_the_pods() -> None:
    cluster = SharedCluster({"node0": 8})
    job = cluster.submit(small(2, failurePolicy={"startDeadlineSeconds": 60}), gates=("kueue.x-k8s.io/admission",))
    cluster.run(3600)
    assert (job.status.phase, job.status.reason) == (Phase.QUEUED, Reason.SCHEDULING_GATED)
    assert len(job.pods()) == 5
    assert len(job.created) == 5
    lift(job)
    cluster.touch(job)
    cluster.run(DAY, until=lambda: ended(cluster))
    assert phases(cluster) == [Phase.SUCCEEDED]
    assert len(job.created) == 5


def test_gated_pods_make_way_only_if_they_use_up_a_quota_that_refuses_another_job() -> None:
    cluster = SharedCluster({"node0": 8}, quota=8)
    gated = cluster.submit(small(2), gates=("example.com/hold",))
    cluster.run(3600)
    assert len(gated.pods()) == 5
    other = cluster.submit(small(2))
    cluster.run(DAY, until=lambda: other.status.phase is Phase.SUCCEEDED)
    assert other.status.phase is Phase.SUCCEEDED
    assert other.status.restarts == 0
    lift(gated)
    cluster.run(DAY, until=lambda: ended(cluster))
    assert phases(cluster) == [Phase.SUCCEEDED, Phase.SUCCEEDED]


@pytest.mark.parametrize("quota", [None, 6])
def test_a_job_whose_minimum_fits_runs_with_the_rollout_pods_for_which_there_is_room(quota: int | None) -> None:
    cluster = SharedCluster({"node0": 100 if quota else 6}, quota=quota)
    job = cluster.submit(with_rollouts(8), seconds=2 * DAY)
    cluster.run(60)
    assert job.status.phase is Phase.RUNNING
    assert job.minimum == (5, 5)


def test_gated_pods_make_no_way_for_more_rollout_pods_than_rounds_need() -> None:
    cluster = SharedCluster({"node0": 16}, quota=12)
    running = cluster.submit(with_rollouts(3), seconds=2 * DAY)
    gated = cluster.submit(small(2), gates=("example.com/hold",))
    cluster.run(60)
    cluster.quota = 11
    running.delete_pod(running.rollout_pods()[0], grace=0)
    cluster.touch(running)
    cluster.run(4 * PERIOD)
    assert running.status.phase is Phase.RUNNING
    assert "quota" in str(running.status.conditions)
    assert len(gated.created) == 5


def test_gated_pods_that_a_release_left_make_way_once_a_quota_refuses_another_job() -> None:
    cluster = SharedCluster({"node0": 8}, quota=8)
    job = cluster.submit(small(2), gates=("example.com/hold",))
    cluster.run(60)
    lift(job)
    job.gates = ()
    for pod in job.pods(Role.TRAINER):
        pod["spec"]["schedulingGates"] = [{"name": "example.com/hold"}]
    cluster.touch(job)
    cluster.run(2 * PERIOD + 30)
    assert job.status.reason == Reason.PODS_RELEASED
    assert len(job.pods()) == 2
    other = cluster.submit(small(4), seconds=30)
    cluster.run(30)
    assert not job.pods()
    cluster.run(DAY, until=lambda: other.status.phase is Phase.SUCCEEDED)
    assert other.status.phase is Phase.SUCCEEDED


def test_the_job_of_higher_priority_gets_what_the_other_gives_back() -> None:
    cluster = SharedCluster({"node0": 8})
    cluster.visit(2, 300)
    low = cluster.submit(small(4), priority=1, seconds=3000)
    high = cluster.submit(small(4), priority=1000, seconds=3000)
    # Both are half placed: the low one came first, the high one when the visitor went.
    cluster.run(2 * PERIOD, until=lambda: high.status.phase is Phase.RUNNING)
    assert high.status.phase is Phase.RUNNING
    cluster.run(DAY, until=lambda: ended(cluster))
    assert phases(cluster) == [Phase.SUCCEEDED, Phase.SUCCEEDED]
    assert low.status.restarts == 0
