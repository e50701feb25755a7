"""Which changes of a job cost a plan."""

from __future__ import annotations

import copy
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given

from longboat_operator.watch.wakes import (
    tells_of_resize,
    wakes_capacity,
    wakes_its_grantor,
    wakes_its_writer,
    wakes_job,
)

RESHAPE = {"step": 3, "kind": "Short", "tensorParallel": 2, "reason": "preemptions", "seconds": "9.1"}
GAMES: dict[str, Any] = {"incarnation": 1, "number": 1, "pools": [{"name": "games", "replicas": 2}]}
JOB: dict[str, Any] = {
    "apiVersion": "longboat.dev/v1alpha1",
    "kind": "RLJob",
    "metadata": {"namespace": "a", "name": "x", "uid": "1", "resourceVersion": "7", "generation": 1},
    "spec": {"suspend": False},
    "status": {
        "phase": "Running",
        "training": {"incarnation": 1, "state": "Running", "step": 4, "reward": "0.5", "reshapes": [RESHAPE]},
        "demand": {"rollout": {"incarnation": 1, "number": 1, "replicas": 2}, "environment": GAMES},
        "allocation": {"incarnation": {"number": 1}, "grant": {"rollout": {"answers": 1, "replicas": 2}}},
        "roles": {"rollout": {"ready": 2, "pods": [{"index": 0, "attempt": 0, "restarts": 0}]}},
        "checkpoint": {"incarnation": 1, "step": 2},
    },
}


def changed(path: str, value: Any) -> dict[str, Any]:
    job = copy.deepcopy(JOB)
    *parents, last = path.split(".")
    target = job
    for parent in parents:
        target = target.setdefault(parent, {})
    target[last] = value
    return job


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("metadata.resourceVersion", "8"),
        ("metadata.managedFields", [{"manager": "longboat-driver"}]),
        ("status.training.step", 5),
        ("status.training.reward", "0.6"),
        ("status.training.updated", "2026-11-21T10:00:00Z"),
        ("status.training.tokensPerSecond", 100),
        ("status.training.reshapes", [RESHAPE | {"seconds": "9.2"}]),
        ("status.demand.rollout.replicas", 3),
        ("status.demand.rollout.giveFirst", ["x-rollout-1-a0"]),
        ("status.demand.rollout.drained", ["x-rollout-1-a0"]),
        ("status.demand.environment", GAMES | {"pools": [{"name": "games", "replicas": 3}]}),
        ("status.demand.environment", GAMES | {"number": 2}),
    ],
)
def test_progress_and_what_a_pool_decides_wake_no_job(path: str, value: Any) -> None:
    assert not wakes_job(JOB, changed(path, value))


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("status.training.state", "Succeeded"),
        ("status.training.incarnation", 2),
        ("status.training.reshapes", [RESHAPE, RESHAPE | {"step": 4}]),
        ("status.training.reshapes", [RESHAPE | {"failure": "out of memory"}]),
        ("status.demand.rollout.incarnation", 2),
        ("status.allocation.grant.rollout.replicas", 1),
        ("status.demand.incarnationRequest", "token"),
        ("status.checkpoint.step", 4),
        ("status.problem", {"reason": "OutOfMemory", "message": "too long"}),
        ("status.phase", "Failed"),
        ("spec.suspend", True),
        ("metadata.deletionTimestamp", "2026-11-21T10:00:00Z"),
        ("metadata.generation", 2),
        ("metadata.uid", "2"),
        ("status.demand.environment", GAMES | {"incarnation": 2}),
        ("status.allocation.grant.environment", {"pools": [{"name": "games", "replicas": 1}]}),
    ],
)
def test_what_a_jobs_plan_looks_at_wakes_it(path: str, value: Any) -> None:
    assert wakes_job(JOB, changed(path, value))


def test_only_pods_that_the_grant_takes_back_are_drained_for_the_jobs_plan() -> None:
    old = changed(
        "status.allocation.grant.rollout.leaving", [{"pod": "x-rollout-1-a0", "deadline": "2026-11-21T10:00:00Z"}]
    )

    def said(incarnation: int, *drained: str) -> dict[str, Any]:
        job = copy.deepcopy(old)
        job["status"]["demand"]["rollout"] |= {"incarnation": incarnation, "drained": list(drained)}
        return job

    assert wakes_job(old, said(1, "x-rollout-1-a0"))
    assert wakes_job(said(1, "x-rollout-1-a0"), said(2, "x-rollout-1-a0"))
    assert not wakes_job(said(1, "x-rollout-1-a0"), said(1, "x-rollout-1-a0", "x-rollout-0-a0"))
    assert not wakes_job(old, said(1, "x-rollout-0-a0"))


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("status.demand.rollout.number", 2),
        ("status.demand.rollout.replicas", 3),
        ("status.demand.rollout.giveFirst", ["x-rollout-1-a0"]),
        ("status.allocation.incarnation.number", 2),
        ("status.allocation.grant", None),
        ("status.roles.rollout.pods", []),
        ("status.conditions", [{"type": "Suspended", "status": "True"}]),
        ("status.suspendTime", "2026-11-21T10:00:00Z"),
        ("spec.suspend", True),
        ("spec.rollout", {"replicas": 3}),
        ("spec.rollout", {"minReplicas": 1}),
        ("spec.rewardCpu", {"total": "4"}),
        ("status.demand.reward", {"incarnation": 1, "number": 2}),
        ("status.demand.reward", {"pools": [{"name": "code", "cpu": "2"}]}),
        ("metadata.deletionTimestamp", "2026-11-21T10:00:00Z"),
        ("metadata.uid", "2"),
        ("status.placement", {"releaseTime": "2026-11-21T10:00:00Z"}),
        ("status.placement", {"retryTime": "2026-11-21T10:00:00Z"}),
        ("spec.environmentPools", [{"name": "games", "replicas": 2}]),
        ("status.demand.environment", GAMES | {"number": 2}),
        ("status.demand.environment", GAMES | {"pools": [{"name": "games", "replicas": 3}]}),
    ],
)
def test_what_a_pools_plan_looks_at_wakes_it(path: str, value: Any) -> None:
    assert wakes_capacity(JOB, changed(path, value))


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("metadata.resourceVersion", "8"),
        ("status.training.step", 5),
        ("status.training.state", "Succeeded"),
        ("status.checkpoint.step", 4),
        ("status.demand.rollout.drained", ["x-rollout-1-a0"]),
        ("status.demand.rollout.reason", "preemptions"),
        ("status.rewardCpu", {"total": "4", "used": "2"}),
        ("status.roles.rollout.ready", 1),
        ("status.roles.rollout.pods", [{"index": 0, "attempt": 0, "restarts": 1}]),
        ("status.phase", "Failed"),
        (
            "status.demand.environment",
            GAMES | {"pools": [GAMES["pools"][0] | {"drained": ["x-environment-games-1-a0"]}]},
        ),
        ("status.roles.environment", {"pods": [{"pool": "games", "index": 1, "attempt": 0}]}),
    ],
)
def test_what_a_pools_plan_does_not_look_at_wakes_it_not(path: str, value: Any) -> None:
    assert not wakes_capacity(JOB, changed(path, value))


def test_of_children_only_pods_whose_number_is_granted_wake_a_pool_and_only_by_what_it_reads() -> None:
    def pod(role: str = "rollout", ready: str = "True", **more: Any) -> dict[str, Any]:
        metadata = {"namespace": "a", "name": "p", "uid": "1", "labels": {"longboat.dev/role": role}}
        status = {"phase": "Running", "conditions": [{"type": "Ready", "status": ready}], **more}
        return {"kind": "Pod", "metadata": metadata, "status": status}

    assert wakes_capacity(None, pod())
    assert wakes_capacity(pod(), None)
    assert wakes_capacity(pod(), pod(ready="False"))
    assert not wakes_capacity(pod(), pod(containerStatuses=[{"restartCount": 1}]))
    foreign = [{"name": "rollout", "ready": True}, {"name": "istio", "ready": False}]
    waits = pod(
        conditions=[{"type": "Ready", "status": "False", "reason": "ContainersNotReady"}], containerStatuses=foreign
    )
    assert not wakes_capacity(pod(), {**waits, "spec": {"containers": [{"name": "rollout"}, {"name": "istio"}]}})
    deleted = {**pod(), "metadata": {**pod()["metadata"], "deletionTimestamp": "2026-01-01T00:00:00Z"}}
    ended = {**deleted, "metadata": {**deleted["metadata"], "deletionGracePeriodSeconds": 0, "finalizers": ["a/b"]}}
    assert wakes_capacity(deleted, ended), "nothing but its finalizers keeps it"
    assert wakes_capacity(pod("environment"), pod("environment", ready="False"))
    assert not wakes_capacity(None, pod("trainer"))
    assert not wakes_capacity(None, {"kind": "Service", "metadata": {"namespace": "a", "name": "s", "uid": "1"}})


def test_coming_and_going_wakes() -> None:
    assert wakes_job(None, JOB)
    assert wakes_job(JOB, None)
    assert not wakes_job(None, None)
    assert wakes_capacity(None, JOB)
    assert wakes_capacity(JOB, None)


def test_a_first_report_without_a_state_is_progress() -> None:
    bare = {key: value for key, value in JOB.items() if key != "status"}
    assert not wakes_job(bare, {**bare, "status": {"training": {"step": 1}}})


@given(st.dictionaries(st.sampled_from(["step", "reward", "stage", "parity"]), st.integers()))
def test_no_report_of_progress_wakes(training: dict[str, int]) -> None:
    kept = {key: JOB["status"]["training"][key] for key in ("state", "incarnation", "reshapes")}
    assert not wakes_job(JOB, changed("status.training", {**training, **kept}))


def test_a_demand_for_cpus_is_the_pools_affair_and_its_grant_the_jobs() -> None:
    asked = changed("status.demand.reward", {"incarnation": 1, "number": 2, "pools": [{"name": "code", "cpu": "2"}]})
    assert not wakes_job(JOB, asked)
    granted = copy.deepcopy(asked)
    granted["status"]["allocation"]["grant"]["reward"] = {"answers": 2, "pools": [{"name": "code", "cpu": "2"}]}
    assert wakes_job(asked, granted)


def recorded(*records: dict[str, Any]) -> dict[str, Any]:
    return changed("status.roles.rollout.pods", list(records))


def test_the_first_record_of_a_new_pod_calls_for_no_other_plan() -> None:
    """Of the job, whose plan has made both, nor of its capacity, which sees the pod itself."""
    known = JOB["status"]["roles"]["rollout"]["pods"][0]
    more = recorded(known, {"index": 1, "attempt": 0, "restarts": 0})
    assert not wakes_its_writer(JOB, more)
    assert not wakes_capacity(JOB, more)
    assert wakes_its_writer(more, JOB)
    assert wakes_capacity(more, JOB), "a pod that left is no longer recorded: its name is free"


@pytest.mark.parametrize(
    ("placement", "wakes"),
    [
        ({"minimum": 5, "placed": 3, "since": "2026-11-21T10:00:00Z"}, False),
        ({"minimum": 5, "placed": 5, "startSince": "2026-11-21T10:00:00Z", "startSeconds": 7}, False),
        ({"minimum": 5, "placed": 3, "releaseTime": "2026-11-21T10:00:00Z"}, True),
        ({"minimum": 5, "placed": 0, "retryTime": "2026-11-21T10:00:00Z"}, True),
    ],
)
def test_a_published_release_calls_for_another_plan_and_published_clocks_do_not(
    placement: dict[str, Any], wakes: bool
) -> None:
    assert wakes_its_writer(JOB, changed("status.placement", placement)) is wakes
    assert wakes_capacity(JOB, changed("status.placement", placement)) is wakes


def compacted(indexes: str, *records: dict[str, Any], attempt: int = 0, was_ready: bool = False) -> dict[str, Any]:
    roles = {"rollout": {"ready": 2, "pods": [*records]}}
    roles["rollout"]["intact"] = [{"attempt": attempt, "indexes": indexes, "wasReady": was_ready}]
    return changed("status.roles", roles)


def test_records_in_their_compact_form_call_for_plans_as_others_do() -> None:
    one, two = compacted("0"), compacted("0-1", was_ready=True)
    for before, after in ((JOB, one), (one, JOB), (JOB, two), (one, two)):
        assert not wakes_its_writer(before, after)
        assert not wakes_capacity(before, after)
    assert wakes_its_writer(two, one)
    assert wakes_capacity(two, one)
    assert wakes_its_writer(one, compacted("0", attempt=1))
    restarted = compacted("1", {"index": 0, "attempt": 0, "restarts": 1})
    assert wakes_its_writer(two, restarted)
    assert not wakes_capacity(two, restarted)


@pytest.mark.parametrize(
    "record",
    [
        {"index": 0, "attempt": 1, "restarts": 0},
        {"index": 0, "attempt": 0, "restarts": 1},
        {"index": 0, "attempt": 0, "restarts": 0, "lostTime": "2026-11-21T10:00:00Z"},
    ],
)
def test_what_becomes_of_a_known_pod_calls_for_another_plan(record: dict[str, Any]) -> None:
    assert wakes_its_writer(JOB, recorded(record))


def test_a_record_with_a_history_calls_for_another_plan() -> None:
    known = JOB["status"]["roles"]["rollout"]["pods"][0]
    assert wakes_its_writer(JOB, recorded(known, {"index": 1, "attempt": 2, "restarts": 0, "losses": 1}))


def test_a_grant_calls_for_no_other_plan_of_the_pool_that_gave_it() -> None:
    granted = changed("status.allocation.grant.rollout.replicas", 1)
    assert wakes_capacity(JOB, granted), "somebody else's doing"
    assert not wakes_its_grantor(JOB, granted)
    granted["status"]["demand"]["rollout"]["number"] = 2
    assert wakes_its_grantor(JOB, granted)
    assert wakes_its_grantor(JOB, None)


def test_cpus_that_move_wait_for_what_nodes_say_of_reward_pods() -> None:
    def pod(role: str = "reward", **status: Any) -> dict[str, Any]:
        metadata = {"namespace": "a", "name": "p", "uid": "1", "labels": {"longboat.dev/role": role}}
        return {"kind": "Pod", "metadata": metadata, "status": {"phase": "Running", **status}}

    more = {"containerStatuses": [{"name": "graders", "resources": {"limits": {"cpu": "2"}}}]}
    waits = {"conditions": [{"type": "PodResizePending", "status": "True", "reason": "Deferred"}]}
    assert tells_of_resize(pod(), pod(**more))
    assert tells_of_resize(pod(**waits), pod())
    assert not tells_of_resize(pod(), pod(conditions=[{"type": "Ready", "status": "True"}]))
    assert not tells_of_resize(pod("trainer"), pod("trainer", **more))
    assert not tells_of_resize(None, pod(**more))
    assert not tells_of_resize(JOB, JOB)
