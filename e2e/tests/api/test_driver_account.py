"""Tests that a driver's account writes only its own part of its own job's status, and only as the newest driver."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from e2e.cluster.cluster import Cluster
from e2e.tests.api.objects import NAMESPACE, STARTED, Jobs, NewJob, Refused, listed, once_known
from longboat_crds.base import Role
from longboat_operator.pods.access import driver_account, driver_role, driver_role_binding
from longboat_operator.pods.names import Place
from tests.support.driver_tokens import driver_pod

pytestmark = pytest.mark.cluster


TRAINING = {"incarnation": 2, "state": "Running", "step": 1}
GRANTED = {"phase": "Running", "startTime": STARTED, "allocation": {"incarnation": {"number": 2, "request": "token"}}}


@pytest.fixture
def driver(server: Cluster, jobs: Jobs, new_job: NewJob) -> Iterator[Jobs]:
    """Makes job `job` with all the objects that give its driver its rights, as the operator makes them, and a driver pod.

    Yields jobs as the driver sees them.
    """
    ref = jobs.reference(new_job())
    jobs.apply_status(ref.name, "longboat-operator", GRANTED)
    made = [driver_account(ref), driver_role(ref), driver_role_binding(ref)]
    server.kubectl("apply", "--server-side", "-f", "-", stdin=json.dumps(listed(made)))
    pod = ref.pod(Role.DRIVER, Place("", 0), 0)
    driver = Jobs(server, NAMESPACE, driver_pod(server, NAMESPACE, pod, ref.driver_account))
    once_known(lambda: driver.get(ref.name))
    yield driver
    server.kubectl("-n", NAMESPACE, "delete", "pod", pod, "--force")


def test_a_driver_writes_its_own_fields(driver: Jobs) -> None:
    status = {
        "training": TRAINING,
        "demand": {"incarnationRequest": "token", "rollout": {"incarnation": 2, "number": 1, "replicas": 2}},
        "checkpoint": {"incarnation": 2, "step": 1},
        "problem": {"reason": "StageStuck", "message": "train has taken 1800 s"},
    }
    written = driver.apply_status("job", "longboat-driver", status)["status"]
    assert written["training"] == TRAINING
    assert written["phase"] == "Running"
    driver.apply_status("job", "longboat-driver", {"training": TRAINING | {"step": 2}})


def test_a_first_demand_needs_no_incarnation(driver: Jobs, jobs: Jobs) -> None:
    driver.apply_status("job", "longboat-driver", {"demand": {"incarnationRequest": "token"}})
    assert "training" not in jobs.get("job")["status"]


@pytest.mark.parametrize(
    ("status", "words"),
    [
        ({"phase": "Succeeded"}, "status.phase belongs to the operator"),
        ({"allocation": {"rolloutReplicas": 100}}, "status.allocation belongs to the operator"),
        ({"allocation": {"grant": {"rollout": {"replicas": 100}}}}, "status.allocation belongs to the operator"),
        ({"reported": {"demandLimited": True}}, "status.reported belongs to the operator"),
        ({"startTime": None}, "status.startTime belongs to the operator"),
        (
            {"conditions": [{"type": "Failed", "status": "True", "reason": "X", "lastTransitionTime": STARTED}]},
            "status.conditions belongs to the operator",
        ),
        ({"training": {**TRAINING, "incarnation": 3}}, "is not status.allocation.incarnation.number"),
    ],
)
def test_a_driver_writes_nothing_else(driver: Jobs, jobs: Jobs, status: dict[str, Any], words: str) -> None:
    with pytest.raises(Refused, match=words) as caught:
        driver.merge("job", {"status": status}, "status")
    assert caught.value.status == 403
    assert jobs.get("job")["status"] == GRANTED


def test_a_driver_cannot_write_in_the_operators_name(driver: Jobs, jobs: Jobs) -> None:
    """Applying as one of the operator's managers with less would take its fields away."""
    with pytest.raises(Refused, match="belongs to the operator"):
        driver.apply_status("job", "longboat-operator", {"phase": "Running"})
    jobs.apply_status("job", "longboat-operator-pool", {"allocation": {"grant": {"rollout": {"replicas": 1}}}})
    with pytest.raises(Refused, match="belongs to the operator"):
        driver.apply_status("job", "longboat-operator-pool", {})


@pytest.mark.parametrize(
    "stale",
    [
        {"training": {**TRAINING, "incarnation": 1}},
        {"demand": {"rollout": {"incarnation": 1, "number": 1, "replicas": 1}}},
    ],
)
def test_an_older_incarnation_is_fenced_off(driver: Jobs, jobs: Jobs, stale: dict[str, Any]) -> None:
    """Leaving the incarnation out would be a way round it: applied status drops what is left out."""
    driver.apply_status("job", "longboat-driver", {"training": TRAINING})
    with pytest.raises(Refused, match="a newer driver runs this job") as caught:
        driver.apply_status("job", "longboat-driver", stale)
    assert caught.value.status == 403
    assert jobs.get("job")["status"]["training"] == TRAINING


def test_a_driver_reaches_no_other_job(server: Cluster, driver: Jobs, jobs: Jobs, new_job: NewJob) -> None:
    other = new_job(name="other", status=GRANTED)
    with pytest.raises(Refused, match="forbidden"):
        driver.apply_status(other, "longboat-driver", {"training": TRAINING})
    with pytest.raises(Refused, match="forbidden"):
        driver.get(other)
    with pytest.raises(Refused, match="forbidden"):
        driver.merge("job", {"spec": {"suspend": True}})
    # Even where somebody gives it too much by RBAC, the policy keeps it to its own job.
    server.kubectl(
        "create", "clusterrolebinding", "too-much", "--clusterrole=cluster-admin", "--serviceaccount=api:job-driver"
    )
    try:
        with pytest.raises(Refused, match="write a job's status"):
            once_known(lambda: driver.apply_status(other, "longboat-driver", {"training": TRAINING}))
    finally:
        server.kubectl("delete", "clusterrolebinding", "too-much")
    assert "training" not in jobs.get(other)["status"]
