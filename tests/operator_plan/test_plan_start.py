"""From an RLJob to running pods, and what is told when it doesn't get there."""

import dataclasses
import json
import re
from datetime import datetime
from typing import Any

import pytest

from longboat_crds.reasons import ConditionType, Reason
from longboat_crds.status import Phase
from longboat_operator.model import ApplyObject, CreateObject, JobKey, Observed, Plan
from longboat_operator.planner import plan
from longboat_operator.reading.conditions import find, holds
from longboat_operator.reading.times import stamp
from tests.operator_plan.simulated_cluster import SimulatedCluster, runtime_of, spec_of


def made(found: Plan) -> list[tuple[str, str]]:
    return [
        (a.body["kind"], a.body["metadata"]["name"]) for a in found.actions if isinstance(a, CreateObject | ApplyObject)
    ]


def condition(cluster: SimulatedCluster, kind: ConditionType) -> tuple[str, str, str]:
    found = find(cluster.status.conditions, kind)
    assert found
    return found.status, found.reason, found.message


def test_the_name_of_the_token_is_published_before_pods_are_made_and_then_the_head_comes_first() -> None:
    cluster = SimulatedCluster()
    before = made(cluster.reconcile())
    assert {kind for kind, _ in before} == {
        "ServiceAccount", "Role", "RoleBinding", "Service", "NetworkPolicy", "PersistentVolumeClaim",
    }  # fmt: skip
    token = cluster.status.ray_token_secret
    assert token
    kinds = made(cluster.reconcile())
    assert kinds[:3] == [("Secret", token), ("ControllerRevision", "sums-runtime-1"), ("Pod", "sums-driver-0-a0")]
    assert [kind for kind, _ in kinds[2:]] == ["Pod"] * 6


def test_one_pod_of_each_role_is_checked_before_one_is_made() -> None:
    cluster = SimulatedCluster()
    actions = [*cluster.reconcile().actions, *cluster.reconcile().actions]
    checked = [a.body["metadata"]["name"] for a in actions if isinstance(a, CreateObject) and a.dry_run]
    assert checked == [
        "sums-runtime-1",
        "sums-driver-0-a0",
        "sums-rollout-0-a0",
        "sums-reward-default-0-a0",
        "sums-trainer-0-a0",
    ]


def shapes(observed: Observed, now: datetime) -> list[str]:
    """The shapes of what is checked first for a job."""
    return [a.dry_run for a in plan(observed, now).actions if isinstance(a, CreateObject) and a.dry_run]


def first_pods(**changes: Any) -> tuple[Observed, datetime]:
    """What the plan sees that makes the first pods."""
    cluster = SimulatedCluster(**changes)
    cluster.reconcile()
    cluster.grant()
    return cluster.planned()[0], cluster.now


def test_what_is_checked_has_the_same_shape_for_all_jobs_of_one_spec_and_template() -> None:
    def renamed(value: Any) -> Any:
        text = json.dumps(value).replace("sums", "another")
        return json.loads(re.sub(r"(\d{8})-uid", r"\1-of-another", text))

    observed, now = first_pods()
    first = shapes(observed, now)
    assert len(set(first)) == 5
    looked_up = {(kind, renamed(name)): renamed(found) for (kind, name), found in observed.looked_up.items()}
    another = dataclasses.replace(
        observed,
        key=JobKey("research", "another"),
        job=renamed(observed.job),
        children=renamed(observed.children),
        looked_up=looked_up,
    )
    assert shapes(another, now) == first
    assert not set(shapes(*first_pods(runtime=runtime_of("longboat-runtime:2")))) & set(first)
    revision, *pods = shapes(*first_pods(spec=spec_of(rollout={"enginesPerPod": 2})))
    assert revision == first[0]
    assert pods != first[1:]


def test_the_token_is_made_by_apply() -> None:
    cluster = SimulatedCluster()
    cluster.reconcile()
    secrets = [a for a in cluster.reconcile().actions if isinstance(a, CreateObject) and a.random_key]
    assert [(a.body["kind"], a.random_key) for a in secrets] == [("Secret", "token")]
    assert "data" not in secrets[0].body


def test_phases_of_a_good_start() -> None:
    cluster = SimulatedCluster()
    cluster.settle()
    assert (cluster.status.phase, cluster.status.reason) == (Phase.QUEUED, Reason.PODS_STARTING)
    for pod in cluster.pods():
        cluster.schedule(pod["metadata"]["name"])
    cluster.settle()
    assert (cluster.status.phase, cluster.status.reason) == (Phase.STARTING, Reason.PODS_STARTING)
    cluster.start_all()
    cluster.settle()
    assert (cluster.status.phase, cluster.status.reason) == (Phase.STARTING, Reason.DRIVER_STARTING)
    cluster.start_driver()
    cluster.settle()
    status = cluster.status
    assert (status.phase, status.reason) == (Phase.RUNNING, Reason.TRAINING)
    assert status.roles
    assert status.roles.rollout
    assert status.roles.rollout.ready_text == "2/2"
    assert status.start_time
    assert [e.reason for e in cluster.events] == ["Started", "Running"]


def test_a_running_job_costs_nothing() -> None:
    cluster = SimulatedCluster()
    cluster.up()
    for _ in range(5):
        cluster.train(1)
        found = plan(cluster.observed(), cluster.now)
        assert found.empty
        assert found.look_again_seconds is None
        cluster.advance(3600)


def test_a_missing_runtime_is_named_and_the_job_starts_when_it_comes() -> None:
    cluster = SimulatedCluster(runtime=None)
    cluster.settle()
    assert cluster.status.phase is Phase.PENDING
    assert cluster.status.reason == Reason.RUNTIME_NOT_FOUND
    assert "ClusterRLRuntime cpu" in condition(cluster, ConditionType.RUNTIME_RESOLVED)[2]
    assert not cluster.children["Role"]
    assert [e.type for e in cluster.events] == ["Warning"]
    cluster.runtime = runtime_of()
    cluster.settle()
    assert cluster.status.phase is Phase.QUEUED


def test_a_stored_template_that_lacks_what_pods_need_is_shown_with_its_field_and_what_runs_goes_on() -> None:
    cluster = SimulatedCluster()
    cluster.up()
    pods = {pod["metadata"]["uid"] for pod in cluster.pods()}
    cluster.children["ControllerRevision"]["sums-runtime-1"]["data"]["image"] = {"name": "runtime"}
    cluster.settle()
    assert {pod["metadata"]["uid"] for pod in cluster.pods()} == pods
    status, reason, message = condition(cluster, ConditionType.RUNTIME_RESOLVED)
    assert (status, reason) == ("False", Reason.POD_TEMPLATE_INVALID)
    assert message.startswith("ControllerRevision sums-runtime-1: data.image: ")


def test_an_operator_for_single_namespaces_says_that_it_can_not_read_cluster_runtimes() -> None:
    cluster = SimulatedCluster()
    seen = dataclasses.replace(cluster.observed(), runtime=None, sees_cluster_runtimes=False)
    cluster.carry_out(plan(seen, cluster.now))
    assert cluster.status.reason == Reason.CLUSTER_RUNTIME_NOT_SERVED


def test_a_rejected_template_is_shown_with_its_field_and_no_pod_is_made() -> None:
    cluster = SimulatedCluster(runtime=runtime_of(image="Not An Image"), invalid_image="Not An Image")
    for _ in range(3):
        cluster.reconcile()
    assert not cluster.children["Pod"]
    assert not cluster.children["ControllerRevision"], "a corrected template is taken as it then is"
    status, reason, message = condition(cluster, ConditionType.RUNTIME_RESOLVED)
    assert (status, reason) == ("False", Reason.POD_TEMPLATE_INVALID)
    assert message.startswith("Pod sums-driver-0-a0: ")
    assert "spec.containers[0].image" in message
    assert cluster.status.start_time is None
    assert cluster.status.phase is Phase.PENDING
    cluster.runtime = runtime_of()
    cluster.settle()
    assert cluster.status.phase is Phase.QUEUED
    assert condition(cluster, ConditionType.RUNTIME_RESOLVED)[0] == "True"


def test_a_template_of_another_form_is_shown_with_its_place() -> None:
    broken = {"roles": {"trainer": {"template": {"spec": {"containers": "none"}}}}}
    cluster = SimulatedCluster(runtime=runtime_of(**broken))
    cluster.settle()
    assert "roles.trainer.template.spec.containers" in condition(cluster, ConditionType.RUNTIME_RESOLVED)[2]


def test_a_full_quota_is_shown_and_the_rest_comes_when_there_is_room() -> None:
    cluster = SimulatedCluster(pod_quota=3)
    for _ in range(4):
        cluster.reconcile()
    assert len(cluster.pods()) == 3
    status, reason, message = condition(cluster, ConditionType.SCHEDULED)
    assert (status, reason) == ("False", Reason.QUOTA_EXCEEDED)
    assert "exceeded quota" in message
    roles = cluster.status.roles
    assert roles
    assert not [r for r in (roles.driver, roles.rollout, roles.reward, roles.trainer) if r and r.restarts]
    cluster.pod_quota = None
    cluster.settle()
    assert len(cluster.pods()) == 6


def test_a_role_whose_pod_was_rejected_asks_for_no_more_of_them() -> None:
    cluster = SimulatedCluster(spec_of(rollout={"replicas": 50}), pod_quota=1)
    cluster.reconcile()
    cluster.reconcile()
    asked = [name for kind, name in made(cluster.reconcile()) if kind == "Pod"]
    assert sum("rollout" in name for name in asked) == 1


def test_the_scheduler_is_quoted() -> None:
    cluster = SimulatedCluster()
    cluster.settle()
    cluster.unschedulable("sums-trainer-1-a0")
    cluster.settle()
    assert condition(cluster, ConditionType.SCHEDULED) == (
        "False", Reason.POD_UNSCHEDULABLE, "pod sums-trainer-1-a0: 0/2 nodes are available: 2 Insufficient cpu.",
    )  # fmt: skip
    assert cluster.status.reason == Reason.POD_UNSCHEDULABLE
    cluster.unschedulable("sums-trainer-1-a0", 'persistentvolumeclaim "models" not found')
    cluster.settle()
    assert cluster.status.reason == Reason.VOLUME_NOT_READY


@pytest.mark.parametrize(
    ("waiting", "message", "reason"),
    [
        ("ErrImagePull", "failed to resolve reference: not found", Reason.IMAGE_PULL_FAILED),
        (
            "ImagePullBackOff",
            'Back-off pulling image "x": ErrImagePull: failed to resolve reference: not found',
            Reason.IMAGE_PULL_FAILED,
        ),
        ("CreateContainerConfigError", 'configmap "rewards" not found', Reason.CONTAINER_NOT_STARTED),
    ],
)
def test_the_kubelet_is_quoted(waiting: str, message: str, reason: Reason) -> None:
    cluster = SimulatedCluster()
    cluster.settle()
    pod = cluster.children["Pod"]["sums-rollout-0-a0"]
    cluster.schedule("sums-rollout-0-a0")
    state = {"waiting": {"reason": waiting, "message": message}}
    pod["status"]["containerStatuses"] = [{"name": "rollout", "restartCount": 0, "state": state}]
    cluster.settle()
    status, found, text = condition(cluster, ConditionType.ROLES_READY)
    assert (status, found) == ("False", reason)
    assert text.startswith("driver 0/1, rollout 0/2")
    assert "pod sums-rollout-0-a0: container rollout" in text
    assert message.split(": ", 2)[-1] in text


def waits_for_volumes(cluster: SimulatedCluster, name: str) -> None:
    """The pod has a node, and its containers can't be started yet."""
    pod = cluster.children["Pod"][name]
    pod["spec"]["nodeName"] = "node0"
    pod["status"]["conditions"] = [
        {"type": "PodScheduled", "status": "True", "lastTransitionTime": stamp(cluster.now)},
        {"type": "PodReadyToStartContainers", "status": "False"},
    ]


def test_a_volume_that_can_not_be_mounted_is_named_though_it_stands_in_an_event_alone() -> None:
    cluster = SimulatedCluster()
    cluster.settle()
    for name in ("sums-reward-default-0-a0", "sums-trainer-0-a0"):
        waits_for_volumes(cluster, name)
    text = 'MountVolume.SetUp failed for volume "reward-files-0" : configmap "rewards" not found'
    cluster.warnings["sums-reward-default-0-a0"] = {"reason": "FailedMount", "message": text}
    cluster.look_ups.clear()
    cluster.settle()
    assert not cluster.look_ups, "a mount may take a moment"
    wait = cluster.planned()[1].look_again_seconds
    assert wait == 20
    cluster.advance(wait)
    cluster.settle()
    assert set(cluster.look_ups) == {("Event", "sums-reward-default-0-a0")}, (
        "one request for a job, however many pods wait"
    )
    status, reason, message = condition(cluster, ConditionType.ROLES_READY)
    assert (status, reason) == ("False", Reason.VOLUME_NOT_READY)
    assert f"pod sums-reward-default-0-a0: FailedMount: {text}" in message
    assert [e.reason for e in cluster.events][-1] == "VolumeNotReady"
    assert cluster.planned()[1].look_again_seconds == 30
    cluster.start_all()
    cluster.settle()
    assert condition(cluster, ConditionType.ROLES_READY)[0] == "True"


def test_an_image_that_is_pulled_for_long_costs_no_request() -> None:
    cluster = SimulatedCluster()
    cluster.settle()
    waits_for_volumes(cluster, "sums-reward-default-0-a0")
    cluster.children["Pod"]["sums-reward-default-0-a0"]["status"]["conditions"][1]["status"] = "True"
    cluster.advance(300)
    cluster.look_ups.clear()
    cluster.settle()
    assert not cluster.look_ups


def test_an_image_that_is_tried_again_and_again_changes_nothing() -> None:
    cluster = SimulatedCluster()
    cluster.settle()
    pod = cluster.children["Pod"]["sums-rollout-0-a0"]
    cause = "failed to resolve reference: not found"
    for reason, message in (
        ("ErrImagePull", cause),
        ("ImagePullBackOff", f'Back-off pulling image "x": ErrImagePull: {cause}'),
    ):
        state = {"waiting": {"reason": reason, "message": message}}
        pod["status"]["containerStatuses"] = [{"name": "rollout", "restartCount": 0, "state": state}]
        cluster.settle()
    writes = cluster.writes
    pod["status"]["containerStatuses"][0]["state"] = {"waiting": {"reason": "ErrImagePull", "message": cause}}
    cluster.settle()
    assert cluster.writes == writes


def test_what_somebody_deletes_is_made_again() -> None:
    cluster = SimulatedCluster()
    cluster.up()
    del cluster.children["Service"]["sums-head"]
    assert made(cluster.reconcile()) == [("Service", "sums-head")]
    assert plan(cluster.observed(), cluster.now).empty


def test_a_spec_of_a_newer_version_is_shown_and_what_runs_goes_on() -> None:
    cluster = SimulatedCluster()
    cluster.up()
    pods = {pod["metadata"]["uid"] for pod in cluster.pods()}
    cluster.edit(futureField={"x": 1})
    cluster.settle()
    assert {pod["metadata"]["uid"] for pod in cluster.pods()} == pods
    status, reason, message = condition(cluster, ConditionType.RUNTIME_RESOLVED)
    assert (status, reason) == ("False", Reason.SPEC_INVALID)
    assert "spec.futureField" in message
    assert cluster.status.phase is Phase.RUNNING
    assert holds(cluster.status.conditions, ConditionType.RUNNING)
