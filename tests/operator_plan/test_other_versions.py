"""What another version has written never keeps a job from being planned, and never keeps it from releasing its pods."""

from __future__ import annotations

import copy
import random
from typing import Any

import pytest

from longboat_crds.base import Role
from longboat_crds.reasons import ConditionType, Reason
from longboat_crds.status import Phase
from longboat_operator.model import LABEL_ATTEMPT, LABEL_INDEX, LABEL_JOB, LABEL_POOL, LABEL_ROLE
from longboat_operator.planner import plan
from longboat_operator.reading.conditions import find
from longboat_operator.reading.status import read_status
from tests.operator_plan.reward_cluster import RewardCluster
from tests.operator_plan.simulated_cluster import SimulatedCluster, spec_of

POD_LABELS = (LABEL_JOB, LABEL_ROLE, LABEL_INDEX, LABEL_ATTEMPT)
# Values of these are words of this version, of which a newer one may have others.
WORDS = ("phase", "reason", "state", "outcome", "stage", "kind", "roundKind", "failed")


def trained(cluster: SimulatedCluster) -> SimulatedCluster:
    """A job that has trained, and replaced a pod."""
    cluster.up()
    cluster.train(7)
    cluster.settle()
    cluster.delete_pod("sums-trainer-0-a0")
    cluster.settle()
    cluster.end_deleted()
    cluster.advance(30)
    cluster.settle()
    cluster.start_all()
    cluster.settle()
    return cluster


def newer(value: Any, draw: random.Random, name: str = "") -> Any:
    """The value as a newer version may have written it: with further fields, and other words."""
    if isinstance(value, dict):
        more = {f"newField{draw.randrange(9)}": draw.choice([1, "word", None, [], {"x": {"y": [1]}}])}
        return {key: newer(part, draw, key) for key, part in value.items()} | (more if draw.random() < 0.2 else {})
    if isinstance(value, list):
        return [newer(item, draw) for item in value]
    return "NewWord" if name in WORDS and draw.random() < 0.2 else value


def assert_released(cluster: SimulatedCluster) -> None:
    for _ in range(3):
        cluster.settle()
        cluster.end_deleted()
        cluster.advance(200)
    assert not cluster.pods()


@pytest.mark.parametrize(
    "seeds", [range(40), pytest.param(range(40, 1040), marks=pytest.mark.extended)], ids=["few", "thousand"]
)
@pytest.mark.parametrize("ends", [False, True], ids=["suspended", "ended"])
def test_a_job_with_a_status_and_a_revision_of_a_newer_version_releases_its_pods(seeds: range, *, ends: bool) -> None:
    original = trained(RewardCluster())
    for seed in seeds:
        draw = random.Random(seed)
        cluster = copy.deepcopy(original)
        assert cluster.job is not None
        status = newer(cluster.job["status"], draw)
        status["conditions"].append({**status["conditions"][0], "type": "NewWord"})
        cluster.job["status"] = status
        for revision in cluster.children["ControllerRevision"].values():
            revision["data"] = newer(revision["data"], draw)
        pods = {pod["metadata"]["uid"] for pod in cluster.pods()}
        made = plan(cluster.observed(), cluster.now)
        assert not made.actions or pods == {pod["metadata"]["uid"] for pod in cluster.pods()}
        if ends:
            training = {"incarnation": cluster.number, "state": "Succeeded", "step": 100}
            cluster.job["status"]["training"] = training | {"newField": 1}
        else:
            cluster.job["spec"]["suspend"] = True
        cluster._touch()
        assert_released(cluster)
        assert cluster.status.phase is (Phase.SUCCEEDED if ends else Phase.SUSPENDED)


def test_parts_of_a_status_that_cannot_be_read_are_left_out_alone() -> None:
    moves = [
        {"target": "math", "cpu": "1", "outcome": outcome, "time": "2026-01-01T00:00:00Z"}
        for outcome in ("Done", "Reverted")
    ]
    status = read_status(
        {
            "phase": "Queued",
            "training": {"incarnation": 2, "state": "Paused", "step": 3, "speed": 1},
            "rewardCpu": {"total": "1", "used": "1", "moves": moves},
            "roles": {"judge": {"desired": 1}, "driver": {"desired": 1, "ready": "all", "readyText": "1/1"}},
        }
    )
    assert status.to_json() == {
        "training": {"incarnation": 2, "state": "Running", "step": 3, "steps": 0, "roundKind": "Short"},
        "rewardCpu": {"total": "1", "used": "1", "moves": moves[:1]},
        "roles": {},
    }


def test_pods_are_made_from_a_revision_of_a_newer_version_without_what_is_unknown() -> None:
    cluster = trained(SimulatedCluster())
    (revision,) = cluster.children["ControllerRevision"].values()
    revision["data"]["gpuTemplates"] = []
    cluster.delete_pod("sums-rollout-0-a0", grace=0)
    cluster.settle()
    cluster.advance(30)
    cluster.settle()
    assert "sums-rollout-0-a1" in cluster.children["Pod"]
    condition = find(cluster.status.conditions, ConditionType.RUNTIME_RESOLVED)
    assert condition is not None
    assert condition.status == "True"
    assert "gpuTemplates" in condition.message


@pytest.mark.parametrize(
    "changes", [{"futureField": {"x": 1}}, {"rounds": {"policy": "Future"}}, {"model": {"path": None}}], ids=str
)
def test_a_job_whose_spec_cannot_be_read_releases_its_pods(changes: dict[str, Any]) -> None:
    cluster = trained(SimulatedCluster(spec_of(checkpoint={"graceSeconds": 60})))
    cluster.edit(**changes)
    cluster.settle()
    assert len(cluster.pods()) == 6
    finding = find(cluster.status.conditions, ConditionType.RUNTIME_RESOLVED)
    assert finding is not None
    assert (finding.status, finding.reason) == ("False", Reason.SPEC_INVALID)
    ending, suspending = copy.deepcopy(cluster), cluster
    ending.train(93, "Succeeded")
    assert_released(ending)
    assert ending.status.phase is Phase.SUCCEEDED
    suspending.edit(suspend=True)
    suspending.settle()
    assert len(suspending.pods()) == 6, "the driver saves a checkpoint"
    assert_released(suspending)
    assert suspending.status.phase is Phase.SUSPENDED
    finding = find(suspending.status.conditions, ConditionType.RUNTIME_RESOLVED)
    assert finding is not None
    assert finding.reason == Reason.SPEC_INVALID


@pytest.mark.parametrize("label", POD_LABELS)
def test_a_pod_that_loses_a_label_is_replaced_and_never_runs_beside_its_successor(label: str) -> None:
    cluster = trained(SimulatedCluster())
    name = "sums-trainer-1-a0"
    del cluster.children["Pod"][name]["metadata"]["labels"][label]
    cluster.settle()
    cluster.advance(60)
    cluster.settle()
    assert "deletionTimestamp" in cluster.children["Pod"][name]["metadata"]
    assert "sums-trainer-1-a1" not in cluster.children["Pod"]
    cluster.end_deleted()
    cluster.advance(60)
    cluster.settle()
    cluster.advance(60)
    cluster.settle()
    cluster.start_all()
    cluster.settle()
    assert sorted(pod["metadata"]["name"] for pod in cluster.pods(Role.TRAINER)) == [
        "sums-trainer-0-a1",
        "sums-trainer-1-a1",
    ]
    assert cluster.status.phase is Phase.RUNNING


@pytest.mark.parametrize("label", POD_LABELS)
@pytest.mark.parametrize("ends", [False, True], ids=["suspended", "ended"])
def test_a_pod_without_labels_goes_with_its_job(label: str, *, ends: bool) -> None:
    cluster = trained(SimulatedCluster())
    del cluster.children["Pod"]["sums-trainer-1-a0"]["metadata"]["labels"][label]
    if ends:
        cluster.train(93, "Succeeded")
    else:
        cluster.edit(suspend=True)
        cluster.train(0, "Suspended")
    assert_released(cluster)


def test_a_pod_that_an_earlier_version_named_goes_once_every_place_has_a_pod() -> None:
    cluster = trained(SimulatedCluster())
    pods = cluster.children["Pod"]
    old = copy.deepcopy(pods["sums-reward-default-0-a0"])
    old["metadata"] |= {"name": "sums-reward-0-a0", "uid": "old"}
    del old["metadata"]["labels"][LABEL_POOL]
    pods["sums-reward-0-a0"] = old
    cluster.delete_pod("sums-reward-default-0-a0", grace=0)
    cluster.settle()
    assert "deletionTimestamp" not in old["metadata"]
    cluster.advance(30)
    cluster.settle()
    assert "sums-reward-default-0-a1" in pods
    assert "deletionTimestamp" in old["metadata"]
    cluster.end_deleted()
    cluster.settle()
    assert "sums-reward-0-a0" not in pods


def test_a_pod_that_the_watch_has_lost_is_not_made_twice() -> None:
    """The look-up is refused: nothing is known of it, so nothing takes its place."""
    cluster = trained(SimulatedCluster())
    del cluster.children["Pod"]["sums-trainer-1-a0"]["metadata"]["labels"][LABEL_JOB]
    observed = cluster.observed()
    made = plan(observed, cluster.now)
    assert made.look_up == (("Pod", "sums-trainer-1-a0"),)
    cluster.rejections["sums-trainer-1-a0"] = "pods is forbidden"
    made = plan(cluster.observed(), cluster.now)
    assert made.empty
    assert made.look_again_seconds is not None
