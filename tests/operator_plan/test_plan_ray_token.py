"""The Secret that Ray's token is in: under a name nobody can guess, made for the job and made anew when it is gone."""

from __future__ import annotations

from typing import Any

from longboat_crds.status import Phase
from longboat_operator.planner import plan
from tests.operator_plan.simulated_cluster import SimulatedCluster
from tests.operator_plan.test_plan_start import waits_for_volumes
from tests.operator_plan.test_plan_surroundings import names, put


def tokens(cluster: SimulatedCluster) -> set[str]:
    return {pod["metadata"]["annotations"]["longboat.dev/ray-token-secret"] for pod in cluster.pods()}


def mounted(pod: dict[str, Any]) -> str:
    (volume,) = [volume for volume in pod["spec"]["volumes"] if volume["name"] == "ray-token"]
    return str(volume["secret"]["secretName"])


def test_all_pods_mount_the_secret_that_the_status_names() -> None:
    cluster = SimulatedCluster()
    cluster.up()
    assert {mounted(pod) for pod in cluster.pods()} == {cluster.status.ray_token_secret} == names(cluster, "Secret")


def test_no_secret_is_used_that_was_there_before() -> None:
    cluster = SimulatedCluster()
    cluster.reconcile()
    taken = cluster.status.ray_token_secret
    assert taken
    put(cluster, "Secret", taken)
    cluster.up()
    assert taken not in tokens(cluster)
    assert tokens(cluster) == {cluster.status.ray_token_secret}


def test_a_secret_made_just_before_a_crash_is_not_trusted() -> None:
    """Whoever made it can't be told: it is left to the garbage collector."""
    cluster = SimulatedCluster()
    cluster.reconcile()
    cluster.reconcile(cut=1)
    (before,) = names(cluster, "Secret")
    assert not cluster.pods()
    cluster.forget()
    cluster.up()
    assert before not in tokens(cluster)
    cluster.delete_job()
    assert not names(cluster, "Secret")


def test_a_pod_made_later_has_the_token_of_the_others() -> None:
    cluster = SimulatedCluster()
    cluster.up()
    (before,) = tokens(cluster)
    cluster.forget()
    cluster.edit(rollout={"replicas": 3})
    cluster.look_ups.clear()
    cluster.settle()
    assert cluster.look_ups == [("Secret", before)]
    assert tokens(cluster) == {before}
    assert len(cluster.pods()) == 7


def test_a_deleted_secret_harms_no_pod_that_runs() -> None:
    cluster = SimulatedCluster()
    cluster.up()
    cluster.children["Secret"].clear()
    assert plan(cluster.observed(), cluster.now).empty


def test_when_a_pod_needs_a_deleted_secret_all_pods_are_made_anew_with_another() -> None:
    cluster = SimulatedCluster()
    cluster.up()
    (before,) = tokens(cluster)
    cluster.children["Secret"].clear()
    cluster.edit(rollout={"replicas": 3})
    for _ in range(30):
        cluster.reconcile()
        cluster.end_deleted()
        cluster.start_all()
        cluster.advance(11)
    assert tokens(cluster) == {cluster.status.ray_token_secret} == names(cluster, "Secret")
    assert before not in tokens(cluster)
    assert len(cluster.pods()) == 7
    assert cluster.status.phase is not Phase.FAILED


def test_a_pod_that_is_stuck_for_a_deleted_secret_is_made_anew_with_the_others() -> None:
    """Deleted between the pod's creation and its start, or while its node was down."""
    cluster = SimulatedCluster()
    cluster.settle()
    (before,) = tokens(cluster)
    cluster.children["Secret"].clear()
    for name in names(cluster, "Pod"):
        waits_for_volumes(cluster, name)
    missing = f'MountVolume.SetUp failed for volume "ray-token" : secret "{before}" not found'
    cluster.warnings["sums-driver-0-a0"] = {"reason": "FailedMount", "message": missing}
    cluster.advance(20)
    for _ in range(30):
        cluster.reconcile()
        cluster.end_deleted()
        cluster.advance(11)
    assert tokens(cluster) == {cluster.status.ray_token_secret} == names(cluster, "Secret") != {before}
    assert len(cluster.pods()) == 6


def test_a_job_that_resumes_gets_another_token() -> None:
    cluster = SimulatedCluster()
    cluster.up()
    (before,) = tokens(cluster)
    cluster.edit(suspend=True)
    cluster.settle()
    cluster.train(0, "Suspended")
    for _ in range(10):
        cluster.reconcile()
        cluster.end_deleted()
    assert cluster.status.phase is Phase.SUSPENDED
    assert cluster.status.ray_token_secret is None
    cluster.edit(suspend=False)
    cluster.settle()
    (after,) = tokens(cluster)
    assert after != before
