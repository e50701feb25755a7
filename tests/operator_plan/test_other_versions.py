"""What another version has written never keeps a job from being planned, and never keeps it from releasing its pods."""

from __future__ import annotations

import copy
import random
from typing import Any

import pytest

from longboat_crds.base import Role
from longboat_crds.reasons import ConditionType, Reason
from longboat_crds.status import Phase, PodRecord, RolesStatus, RoleStatus
from longboat_operator.model import LABEL_ATTEMPT, LABEL_INDEX, LABEL_JOB, LABEL_POOL, LABEL_ROLE
from longboat_operator.plan.records import remembered
from longboat_operator.planner import plan
from longboat_operator.reading.status import read_status
from longboat_operator.reading.times import stamp
from longboat_operator.reading.view import job_ref
from tests.operator_plan.reward_cluster import RewardCluster
from tests.operator_plan.simulated_cluster import SimulatedCluster, spec_of
from tests.operator_plan.test_plan_start import condition

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


def end_or_suspend(cluster: SimulatedCluster, *, ends: bool) -> None:
    if ends:
        cluster.train(93, "Succeeded")
    else:
        cluster.edit(suspend=True)
        cluster.train(0, "Suspended")


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
            "phase": "Paused",
            "training": {"incarnation": 2, "state": "Paused", "step": 3, "speed": 1},
            "rewardCpu": {"total": "1", "used": "1", "moves": moves},
            "roles": {"judge": {"desired": 1}, "driver": {"pods": [{"index": 0}, {"index": 1, "attempt": 0}]}},
        }
    )
    assert status.to_json() == {
        "training": {"incarnation": 2, "state": "Running", "step": 3, "steps": 0, "roundKind": "Short"},
        "rewardCpu": {"total": "1", "used": "1", "moves": moves[:1]},
        "roles": {"driver": {**RoleStatus().to_json(), "pods": [PodRecord(index=1, attempt=0).to_json()]}},
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
    status, _, message = condition(cluster, ConditionType.RUNTIME_RESOLVED)
    assert status == "True"
    assert "gpuTemplates" in message


@pytest.mark.parametrize(
    "changes", [{"futureField": {"x": 1}}, {"rounds": {"policy": "Future"}}, {"model": {"path": None}}], ids=str
)
def test_a_job_whose_spec_cannot_be_read_releases_its_pods(changes: dict[str, Any]) -> None:
    cluster = trained(SimulatedCluster(spec_of(checkpoint={"graceSeconds": 60})))
    cluster.edit(**changes)
    cluster.settle()
    assert len(cluster.pods()) == 6
    assert condition(cluster, ConditionType.RUNTIME_RESOLVED)[:2] == ("False", Reason.SPEC_INVALID)
    ending, suspending = copy.deepcopy(cluster), cluster
    ending.train(93, "Succeeded")
    assert_released(ending)
    assert ending.status.phase is Phase.SUCCEEDED
    suspending.edit(suspend=True)
    suspending.settle()
    assert len(suspending.pods()) == 6, "the driver saves a checkpoint"
    assert_released(suspending)
    assert suspending.status.phase is Phase.SUSPENDED
    assert condition(suspending, ConditionType.RUNTIME_RESOLVED)[1] == Reason.SPEC_INVALID


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
    end_or_suspend(cluster, ends=ends)
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
    """Until the look-up is answered, nothing is decided."""
    cluster = trained(SimulatedCluster())
    del cluster.children["Pod"]["sums-trainer-1-a0"]["metadata"]["labels"][LABEL_JOB]
    observed = cluster.observed()
    made = plan(observed, cluster.now)
    assert made.look_up == (("Pod", "sums-trainer-1-a0"),)
    assert not made.actions


@pytest.mark.parametrize("label", [LABEL_JOB, LABEL_INDEX])
def test_a_pod_whose_label_was_removed_counts_against_no_limit(label: str) -> None:
    cluster = trained(SimulatedCluster(spec_of(failurePolicy={"maxTrainerRestarts": 1, "backoffSeconds": 1})))
    for attempt in range(4):
        del cluster.children["Pod"][f"sums-trainer-1-a{attempt}"]["metadata"]["labels"][label]
        for _ in range(3):
            cluster.settle()
            cluster.end_deleted()
            cluster.advance(30)
        cluster.settle()
        cluster.start_all()
        cluster.settle()
    assert cluster.status.phase is Phase.RUNNING


def test_a_pod_that_loses_its_label_while_it_ends_keeps_its_place() -> None:
    cluster = trained(SimulatedCluster())
    cluster.delete_pod("sums-trainer-1-a0", grace=600)
    cluster.settle()
    del cluster.children["Pod"]["sums-trainer-1-a0"]["metadata"]["labels"][LABEL_JOB]
    cluster.advance(60)
    cluster.settle()
    assert "sums-trainer-1-a1" not in cluster.children["Pod"]


def test_a_pod_without_its_label_that_waits_for_its_network_is_replaced() -> None:
    """Its Events are those of no pod that the watch shows."""
    cluster = trained(SimulatedCluster())
    cluster.delete_pod("sums-trainer-1-a0", grace=0)
    cluster.settle()
    cluster.advance(30)
    cluster.settle()
    cluster.schedule("sums-trainer-1-a1")
    waits = {"type": "PodReadyToStartContainers", "status": "False"}
    scheduled = {"type": "PodScheduled", "status": "True", "lastTransitionTime": stamp(cluster.now)}
    pod = cluster.children["Pod"]["sums-trainer-1-a1"]
    pod["status"]["conditions"] = [waits, scheduled]
    cluster.settle()
    del pod["metadata"]["labels"][LABEL_JOB]
    cluster.advance(60)
    cluster.settle()
    assert "deletionTimestamp" in pod["metadata"]


def test_a_pod_that_loses_its_label_before_the_status_has_a_record_of_it_is_replaced() -> None:
    cluster = SimulatedCluster()
    while "sums-trainer-1-a0" not in cluster.children["Pod"]:
        cluster.reconcile()
    del cluster.children["Pod"]["sums-trainer-1-a0"]["metadata"]["labels"][LABEL_JOB]
    cluster.settle()
    cluster.end_deleted()
    cluster.advance(30)
    cluster.settle()
    names = [pod["metadata"]["name"] for pod in cluster.pods(Role.TRAINER)]
    assert sorted(names) == ["sums-trainer-0-a0", "sums-trainer-1-a1"]


def test_what_somebody_else_has_made_for_the_job_stays() -> None:
    cluster = trained(SimulatedCluster())
    other = copy.deepcopy(cluster.children["Pod"]["sums-driver-0-a0"])
    other["metadata"] |= {"name": "tensorboard", "uid": "other"}
    other["metadata"]["ownerReferences"] = [{**other["metadata"]["ownerReferences"][0], "controller": False}]
    cluster.children["Pod"]["tensorboard"] = other
    cluster.settle()
    assert "deletionTimestamp" not in other["metadata"]


def unreadable(grace: int = 60) -> SimulatedCluster:
    """A trained job of which what remains without an unknown word breaks a rule."""
    cluster = trained(SimulatedCluster(spec_of(checkpoint={"graceSeconds": grace})))
    cluster.edit(rounds={"policy": "Future", "maxStaleness": 1})
    cluster.settle()
    return cluster


def test_an_unreadable_job_whose_suspension_is_taken_back_goes_on() -> None:
    cluster = unreadable()
    cluster.edit(suspend=True)
    cluster.settle()
    cluster.advance(30)
    cluster.edit(suspend=False)
    cluster.settle()
    cluster.advance(600)
    cluster.settle()
    assert not [pod for pod in cluster.pods() if "deletionTimestamp" in pod["metadata"]]


def test_an_unreadable_job_has_its_own_time_for_a_checkpoint_and_its_own_steps() -> None:
    cluster = unreadable(grace=3000)
    suspending = copy.deepcopy(cluster)
    suspending.edit(suspend=True)
    suspending.settle()
    suspending.advance(2000)
    suspending.settle()
    assert not [pod for pod in suspending.pods() if "deletionTimestamp" in pod["metadata"]]
    assert suspending.status.roles == cluster.status.roles
    cluster.edit(rounds={"steps": 200})
    cluster.train(93, "Succeeded")
    cluster.settle()
    assert cluster.status.phase is not Phase.SUCCEEDED


@pytest.mark.parametrize("ends", [False, True], ids=["suspended", "ended"])
def test_a_pod_without_labels_goes_with_its_unreadable_job(*, ends: bool) -> None:
    cluster = unreadable()
    del cluster.children["Pod"]["sums-trainer-1-a0"]["metadata"]["labels"][LABEL_JOB]
    end_or_suspend(cluster, ends=ends)
    assert_released(cluster)


def recorded(cluster: SimulatedCluster) -> list[str]:
    """Names of the pods that the status has records of: one that loses its label before it has one, or once it was given up, isn't looked up."""
    job = job_ref(cluster.job or {})
    roles = cluster.status.roles or RolesStatus()
    names = {
        job.pod(role, place, record.attempt)
        for role in Role
        for place, record in remembered(getattr(roles, role)).records.items()
    }
    return sorted(names & cluster.children["Pod"].keys())


def lived(seed: int) -> None:
    """A job with random losses of labels, deletions, suspensions, demands and a spec that can't be read for a while."""
    draw = random.Random(seed)
    limits = {f"max{role}Restarts": 1000 for role in ("Driver", "Rollout", "Reward", "Trainer")}
    cluster = SimulatedCluster(spec_of(checkpoint={"graceSeconds": 60}, failurePolicy={"backoffSeconds": 5, **limits}))
    cluster.up()
    cluster.train(1)
    cluster.settle()
    for _ in range(25):
        pods = cluster.children["Pod"]
        name = draw.choice(recorded(cluster) or [""])
        match draw.randrange(14):
            case 0 | 1 if name:
                pods[name]["metadata"]["labels"].pop(LABEL_JOB, None)
            case 2 if name:
                pods[name]["metadata"]["labels"].pop(draw.choice(POD_LABELS), None)
            case 3 if name:
                cluster.delete_pod(name)
            case 4:
                cluster.settle()
            case 5:
                cluster.reconcile()
            case 6:
                cluster.end_deleted()
            case 7:
                cluster.advance(draw.choice([1, 6, 30, 70]))
            case 8:
                cluster.start_all()
            case 9:
                cluster.edit(futureField=1)
            case 10:
                cluster.edit(suspend=draw.random() < 0.5)
            case 11:
                cluster.ask(draw.randrange(4))
            case 12:
                cluster.edit(rounds={"steps": cluster.spec["rounds"]["steps"] + draw.choice([0, 0, 50])})
            case 13 if cluster.job:
                cluster.job["spec"].pop("futureField", None)
                cluster.edit()
        places = [name.rpartition("-a")[0] for name in pods]
        assert len(places) == len(set(places)), "two pods of one place"
    assert cluster.job is not None
    cluster.job["spec"].pop("futureField", None)
    cluster.edit(suspend=True)
    for _ in range(6):
        cluster.settle()
        cluster.end_deleted()
        cluster.advance(100)
    assert not cluster.children["Pod"]


@pytest.mark.parametrize(
    "seeds", [range(30), pytest.param(range(30, 530), marks=pytest.mark.extended)], ids=["few", "many"]
)
def test_whatever_happens_to_labels_no_place_has_two_pods_and_no_pod_outlives_its_job(seeds: range) -> None:
    for seed in seeds:
        lived(seed)
