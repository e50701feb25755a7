"""Pods that neither work nor end."""

import pytest

from longboat_crds.base import Role
from longboat_crds.reasons import ConditionType, Reason
from longboat_crds.status import Phase
from longboat_operator.model import DeleteObject
from longboat_operator.planner import plan
from longboat_operator.reading.conditions import find
from tests.operator_plan.simulated_cluster import SimulatedCluster, runtime_of
from tests.operator_plan.test_plan_restarts import names, trained, trainers


@pytest.fixture
def cluster() -> SimulatedCluster:
    return trained()


def test_a_pod_whose_container_is_unhealthy_and_does_not_end_is_replaced_by_force(cluster: SimulatedCluster) -> None:
    cluster.advance(1000)
    cluster.hang("sums-trainer-0-a0")
    cluster.hang("sums-trainer-1-a0")
    cluster.settle()
    assert plan(cluster.observed(), cluster.now).look_again_seconds == 300
    cluster.advance(299)
    assert plan(cluster.observed(), cluster.now).empty, "the kubelet may still restart them"
    cluster.advance(1)
    told = cluster.reconcile()
    assert not [a for a in told.actions if isinstance(a, DeleteObject)], "first the status"
    record = (cluster.status.restart_history or [])[-1]
    assert (record.reason, record.counted) == (Reason.POD_STUCK, True)
    assert trainers(cluster).recent_restarts == 1
    ready = find(cluster.status.conditions, ConditionType.ROLES_READY)
    assert ready
    assert ready.reason == Reason.POD_STUCK
    cluster.settle()
    assert len([pod for pod in cluster.pods(Role.TRAINER) if "deletionTimestamp" in pod["metadata"]]) == 2
    cluster.advance(30 + 60 + 2)
    assert [a.grace_seconds for a in cluster.reconcile().actions if isinstance(a, DeleteObject)] == [0, 0]
    cluster.settle()
    assert names(cluster, Role.TRAINER) == ["sums-trainer-0-a1", "sums-trainer-1-a1"]
    cluster.start_all()
    cluster.settle()
    assert cluster.status.phase is Phase.RUNNING
    assert trainers(cluster).recent_restarts == 1


def test_a_stuck_driver_is_replaced_and_those_that_wait_for_it_are_not(cluster: SimulatedCluster) -> None:
    for pod in cluster.pods():
        cluster.hang(pod["metadata"]["name"])
    cluster.settle()
    cluster.advance(300)
    cluster.settle()
    deleted = [pod["metadata"]["name"] for pod in cluster.pods() if "deletionTimestamp" in pod["metadata"]]
    assert deleted == ["sums-driver-0-a0"]


def test_a_pod_that_gets_well_in_time_is_not_replaced(cluster: SimulatedCluster) -> None:
    for _ in range(5):
        cluster.hang("sums-trainer-0-a0")
        cluster.settle()
        cluster.advance(290)
        cluster.settle()
        cluster.start_all()
        cluster.settle()
    assert cluster.status.restarts == 0


def test_a_container_that_the_template_adds_makes_no_pod_stuck() -> None:
    """What its readiness means nobody here knows."""
    cluster = SimulatedCluster()
    monitoring = {"containers": [{"name": "monitoring", "image": "monitoring:1"}]}
    cluster.runtime = runtime_of(roles={"trainer": {"template": {"spec": monitoring}}})
    cluster.up()
    cluster.hang("sums-trainer-0-a0", "monitoring")
    cluster.settle()
    cluster.advance(3000)
    cluster.settle()
    assert cluster.status.restarts == 0


@pytest.mark.parametrize(("policy", "restarts"), [({}, 1), ({"restartPolicy": "Always"}, 0)])
def test_an_init_container_has_ended_and_a_sidecar_that_ended_is_restarted(
    policy: dict[str, str], restarts: int
) -> None:
    cluster = SimulatedCluster()
    fetch = {"initContainers": [{"name": "fetch", "image": "fetch:1", **policy}]}
    cluster.runtime = runtime_of(roles={"trainer": {"template": {"spec": fetch}}})
    cluster.up()
    cluster.hang("sums-trainer-0-a0")
    ended = {"name": "fetch", "restartCount": 0, "ready": True, "state": {"terminated": {"exitCode": 0}}}
    cluster.children["Pod"]["sums-trainer-0-a0"]["status"]["initContainerStatuses"] = [ended]
    cluster.settle()
    cluster.advance(300)
    cluster.settle()
    assert cluster.status.restarts == restarts


def test_a_pod_that_starts_slowly_is_not_stuck(cluster: SimulatedCluster) -> None:
    """Graders that load a large model, for example."""
    cluster.delete_pod("sums-reward-default-0-a0", grace=0)
    cluster.settle()
    cluster.advance(10)
    cluster.settle()
    cluster.hang("sums-reward-default-0-a1")
    cluster.settle()
    cluster.advance(3000)
    cluster.settle()
    assert cluster.status.restarts == 1
    assert names(cluster, Role.REWARD) == ["sums-reward-default-0-a1"]
