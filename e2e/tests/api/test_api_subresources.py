"""Tests the subresources status and scale, and how kubectl shows them."""

import json

import pytest

from e2e.cluster.cluster import Cluster
from e2e.cluster.errors import CommandError
from e2e.tests.api.objects import NAMESPACE, STARTED, Jobs, NewJob
from tests.support.waiting import DEADLINE_SECONDS

pytestmark = pytest.mark.cluster


def test_scale(server: Cluster, jobs: Jobs, new_job: NewJob) -> None:
    status = {"selector": "longboat.dev/job=job", "roles": {"rollout": {"desired": 1, "ready": 1, "readyText": "1/1"}}}
    name = new_job(status=status | {"startTime": STARTED})
    server.kubectl("-n", NAMESPACE, "scale", "rlj", name, "--replicas=3")
    assert jobs.get(name)["spec"]["rollout"]["replicas"] == 3
    scale = json.loads(server.kubectl("-n", NAMESPACE, "get", "rlj", name, "--subresource=scale", "-o", "json"))
    assert scale["spec"] == {"replicas": 3}
    assert scale["status"] == {"replicas": 1, "selector": "longboat.dev/job=job"}


def test_scale_below_the_minimum_is_refused(server: Cluster, jobs: Jobs, new_job: NewJob) -> None:
    name = new_job({"spec.rollout.replicas": 3, "spec.rollout.minReplicas": 2}, {"startTime": STARTED})
    server.kubectl("-n", NAMESPACE, "scale", "rlj", name, "--replicas=2")
    with pytest.raises(
        CommandError, match="below minReplicas, the fewest rollout pods of the job: raise it, or lower minReplicas"
    ):
        server.kubectl("-n", NAMESPACE, "scale", "rlj", name, "--replicas=1")
    assert jobs.get(name)["spec"]["rollout"]["replicas"] == 2


def test_the_operators_two_managers_take_nothing_from_each_other(jobs: Jobs, new_job: NewJob) -> None:
    """Server-side apply drops what a manager leaves out, if no other manager has applied it."""
    name = new_job()
    mine = {"incarnation": {"number": 1, "request": "token"}, "rolloutReplicas": 2}
    grant = {"rollout": {"answers": 1, "replicas": 1, "leaving": [{"pod": "job-rollout-1-a0", "deadline": STARTED}]}}
    jobs.apply_status(name, "longboat-operator", {"phase": "Running", "allocation": mine})
    jobs.apply_status(name, "longboat-operator-pool", {"allocation": {"grant": grant}})
    jobs.apply_status(name, "longboat-operator", {"phase": "Running", "allocation": mine | {"rolloutReplicas": 1}})
    assert jobs.get(name)["status"]["allocation"] == mine | {"rolloutReplicas": 1, "grant": grant}
    later = {"rollout": {"answers": 2, "replicas": 1}}
    jobs.apply_status(name, "longboat-operator-pool", {"allocation": {"grant": later}})
    assert jobs.get(name)["status"]["allocation"] == mine | {"rolloutReplicas": 1, "grant": later}
    jobs.apply_status(name, "longboat-operator-pool", {})
    assert jobs.get(name)["status"] == {"phase": "Running", "allocation": mine | {"rolloutReplicas": 1}}


def test_a_driver_of_an_earlier_release_keeps_reporting(jobs: Jobs, new_job: NewJob) -> None:
    name = new_job()
    moves = [{"step": 1, "demand": 1, "reason": "code gets 500m", "gainExpected": "10.0%"}]
    progress = {"state": "Running", "incarnation": 1, "step": 3}
    jobs.apply_status(name, "longboat-driver", {"training": progress | {"promptOvercommit": "1.25", "cpuMoves": moves}})
    assert jobs.get(name)["status"]["training"]["step"] == 3
    jobs.apply_status(name, "longboat-driver", {"training": progress | {"step": 4}})
    assert jobs.get(name)["status"]["training"] == progress | {"step": 4}, "as of a driver of this release"


def test_jobs_are_found_by_phase_and_runtime(server: Cluster, new_job: NewJob) -> None:
    new_job(name="one", status={"phase": "Running"})
    new_job({"spec.runtimeRef.name": "gpu"}, {"phase": "Suspended"}, "two")
    for selector, expected in {
        "status.phase=Running": "one",
        "status.phase!=Running,spec.runtimeRef.name=gpu": "two",
    }.items():
        listed = server.kubectl("-n", NAMESPACE, "get", "rlj", "--field-selector", selector, "-o", "name")
        assert listed.split() == [f"rljob.longboat.dev/{expected}"]


def test_columns(server: Cluster, new_job: NewJob) -> None:
    training = {"incarnation": 1, "state": "Running", "step": 7, "roundKind": "Short", "reward": "0.52"}
    role = {"desired": 3, "ready": 2, "readyText": "2/3"}
    status = {
        "phase": "Running",
        "reason": "Training",
        "restarts": 1,
        "training": training | {"tokensPerSecond": 9000, "weightVersion": 7, "tensorParallel": 2},
        "checkpoint": {"incarnation": 1, "step": 5},
        "roles": {"rollout": role, "reward": role | {"cpu": "4", "cpuText": "3/4"}},
    }
    name = new_job(status=status)
    head, row = server.kubectl("-n", NAMESPACE, "get", "rlj", name, "-o", "wide").splitlines()
    columns = "NAME PHASE ROUND STEP REWARD ROLLOUT TP REWARD-CPU TOK/S AGE VERSION RESTARTS CHECKPOINT RUNTIME REASON"
    assert head.split() == columns.split()
    values = dict(zip(head.split(), row.split(), strict=True))
    del values["AGE"]
    assert " ".join(values.values()) == "job Running Short 7 0.52 2/3 2 3/4 9000 7 1 5 cpu Training"


def test_kubectl_waits_for_a_condition(server: Cluster, jobs: Jobs, new_job: NewJob) -> None:
    name = new_job()
    condition = {"type": "Succeeded", "status": "True", "reason": "JobSucceeded", "message": "All steps are done."}
    jobs.apply_status(name, "longboat-operator", {"conditions": [{**condition, "lastTransitionTime": STARTED}]})
    limit = f"--timeout={DEADLINE_SECONDS:g}s"
    server.kubectl("-n", NAMESPACE, "wait", f"rlj/{name}", "--for=condition=Succeeded", limit, timeout=None)
