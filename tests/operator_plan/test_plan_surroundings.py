"""What has a name that a job needs: the job's own is kept as it should be, anything else is left alone."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from longboat_crds.base import Role
from longboat_crds.reasons import ConditionType, Reason
from longboat_crds.status import Phase
from longboat_operator.model import (
    ANNOTATION_LIVE_HASH,
    LABEL_JOB,
    ApplyObject,
    CreateObject,
    PatchMetadata,
    content_digest,
)
from longboat_operator.planner import plan
from longboat_operator.reading.conditions import find
from tests.operator_plan.simulated_cluster import SimulatedCluster, spec_of

CLAIM = "PersistentVolumeClaim"
AROUND = [
    ("ServiceAccount", "sums-driver"), ("Role", "sums-driver"), ("RoleBinding", "sums-driver"), ("Service", "sums-head"),
    ("NetworkPolicy", "sums-job"), ("NetworkPolicy", "sums-reward"), (CLAIM, "sums-checkpoint"),
]  # fmt: skip


def put(cluster: SimulatedCluster, kind: str, name: str, **more: Any) -> dict[str, Any]:
    """An object that is there before the job's."""
    metadata = {"namespace": "research", "name": name, "uid": cluster.uid(), **more.pop("metadata", {})}
    body = {"apiVersion": "v1", "kind": kind, "metadata": metadata, **more}
    cluster.children[kind][name] = body
    return body


def brought(cluster: SimulatedCluster, name: str, *modes: str, actual: tuple[str, ...] = ()) -> None:
    put(cluster, CLAIM, name, spec={"accessModes": list(modes)}, status={"accessModes": list(actual or modes)})


def scheduled(cluster: SimulatedCluster) -> tuple[str, str, str]:
    found = find(cluster.status.conditions, ConditionType.SCHEDULED)
    assert found
    return found.status, found.reason, found.message


def names(cluster: SimulatedCluster, kind: str) -> set[str]:
    return set(cluster.children[kind])


# Strangers'.


@pytest.mark.parametrize(("kind", "name"), AROUND)
def test_a_strangers_object_is_left_alone_and_no_pods_are_made(kind: str, name: str) -> None:
    cluster = SimulatedCluster()
    theirs = copy.deepcopy(put(cluster, kind, name))
    cluster.settle()
    status, reason, message = scheduled(cluster)
    assert (status, reason) == ("False", Reason.NAME_TAKEN)
    assert message.startswith(f"{kind} {name} exists and is not this job's")
    assert "metadata.name" in message
    made = {(k, n) for k, found in cluster.children.items() for n in found}
    assert made <= set(AROUND), "no pod, no Secret, no revision"
    assert cluster.children[kind][name] == theirs
    writes = cluster.writes
    for _ in range(3):
        cluster.advance(30)
        cluster.reconcile()
    assert cluster.writes == writes, "it is looked up only"
    cluster.delete_job()
    assert cluster.children[kind][name] == theirs


def test_every_object_in_the_way_is_named_at_once() -> None:
    cluster = SimulatedCluster()
    put(cluster, "ServiceAccount", "sums-driver")
    put(cluster, CLAIM, "sums-checkpoint")
    cluster.settle()
    message = scheduled(cluster)[2]
    assert "ServiceAccount sums-driver" in message
    assert "set spec.checkpoint.claimName: sums-checkpoint" in message


def test_the_label_of_a_job_makes_nothing_its_own() -> None:
    cluster = SimulatedCluster()
    put(cluster, "ServiceAccount", "sums-driver", metadata={"labels": {LABEL_JOB: "sums"}})
    cluster.settle()
    assert scheduled(cluster)[1] == Reason.NAME_TAKEN


def test_the_job_starts_when_the_name_is_free() -> None:
    cluster = SimulatedCluster()
    put(cluster, "ServiceAccount", "sums-driver")
    cluster.settle()
    assert cluster.planned()[1].look_again_seconds == 30
    del cluster.children["ServiceAccount"]["sums-driver"]
    cluster.up()
    assert cluster.status.phase is Phase.RUNNING


def test_a_claim_of_an_earlier_job_is_not_taken_over() -> None:
    cluster = SimulatedCluster()
    cluster.up()
    cluster.delete_job()
    left = cluster.children[CLAIM]
    assert set(left) == {"sums-checkpoint"}
    again = SimulatedCluster()
    again.job["metadata"]["uid"] = "another-uid"  # type: ignore[index]
    again.children[CLAIM] = left
    again.settle()
    status, reason, message = scheduled(again)
    assert (status, reason) == ("False", Reason.NAME_TAKEN)
    assert "resumeFrom.claimName: sums-checkpoint" in message
    assert not again.pods()
    again.edit(checkpoint={"claimName": "sums-checkpoint"})
    again.settle()
    assert again.pods()


def test_what_a_deleted_job_of_this_name_left_to_the_garbage_collector_is_waited_for() -> None:
    cluster = SimulatedCluster()
    owner = {"apiVersion": "longboat.dev/v1alpha1", "kind": "RLJob", "name": "sums", "uid": "before"}
    for kind, name in AROUND:
        put(cluster, kind, name, metadata={"ownerReferences": [owner]})
    cluster.settle()
    status, reason, message = scheduled(cluster)
    assert (status, reason) == ("False", Reason.PODS_STARTING)
    assert "ServiceAccount sums-driver belongs to a deleted job of this name" in message
    assert not cluster.pods()
    for kind, name in AROUND:
        del cluster.children[kind][name]
    cluster.up()
    assert cluster.status.phase is Phase.RUNNING


# The job's own.


@pytest.mark.parametrize("cut", range(1, 9))
def test_what_was_made_before_a_crash_is_known_again(cut: int) -> None:
    cluster = SimulatedCluster()
    cluster.reconcile(cut)
    made = {
        (kind, name): child["metadata"]["uid"]
        for kind, found in cluster.children.items()
        for name, child in found.items()
    }
    cluster.forget()
    cluster.up()
    assert cluster.status.phase is Phase.RUNNING
    assert {key: cluster.children[key[0]][key[1]]["metadata"]["uid"] for key in made} == made


@pytest.mark.parametrize(("kind", "name"), AROUND)
def test_what_lost_its_labels_is_known_by_its_uid_and_gets_them_back(kind: str, name: str) -> None:
    cluster = SimulatedCluster()
    cluster.up()
    child = cluster.children[kind][name]
    labels, child["metadata"]["labels"] = child["metadata"]["labels"], {}
    cluster.settle()
    assert cluster.children[kind][name]["metadata"]["labels"] == labels
    assert cluster.children[kind][name]["metadata"]["uid"] == child["metadata"]["uid"]
    assert plan(cluster.observed(), cluster.now).empty


@pytest.mark.parametrize(
    ("kind", "name", "field", "value"),
    [
        ("NetworkPolicy", "sums-job", "spec", {"podSelector": {}, "ingress": [{}]}),
        ("NetworkPolicy", "sums-reward", "spec", {"podSelector": {}, "policyTypes": ["Egress"], "egress": [{}]}),
        ("Role", "sums-driver", "rules", []),
        ("RoleBinding", "sums-driver", "subjects", []),
        ("Service", "sums-head", "spec", {"selector": {"app": "theirs"}}),
        ("ServiceAccount", "sums-driver", "automountServiceAccountToken", True),
    ],
)
def test_what_is_edited_by_hand_is_restored(kind: str, name: str, field: str, value: Any) -> None:
    cluster = SimulatedCluster()
    cluster.up()
    child = cluster.children[kind][name]
    ours = child[field]
    child[field] = value
    (action,) = cluster.reconcile().actions
    assert isinstance(action, ApplyObject)
    assert action.uid == child["metadata"]["uid"]
    assert cluster.children[kind][name][field] == ours
    assert plan(cluster.observed(), cluster.now).empty


def test_secrets_that_others_add_to_an_account_are_theirs() -> None:
    cluster = SimulatedCluster()
    cluster.up()
    account = cluster.children["ServiceAccount"]["sums-driver"]
    account |= {"secrets": [{"name": "token"}], "imagePullSecrets": [{"name": "registry"}]}
    assert plan(cluster.observed(), cluster.now).empty


def test_defaults_that_the_server_fills_in_are_no_difference() -> None:
    cluster = SimulatedCluster()
    cluster.up()
    service = cluster.children["Service"]["sums-head"]
    service["spec"] |= {"ipFamilies": ["IPv4"], "sessionAffinity": "None"}
    service["metadata"]["annotations"][ANNOTATION_LIVE_HASH] = content_digest(service)  # as the write notes it
    assert plan(cluster.observed(), cluster.now).empty


def test_an_object_on_its_way_out_is_made_anew_when_it_is_gone() -> None:
    cluster = SimulatedCluster()
    cluster.up()
    service = cluster.children["Service"]["sums-head"]
    service["metadata"] |= {"deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": ["somebody.example/wait"]}
    service["spec"] = {}
    assert cluster.reconcile().empty
    del cluster.children["Service"]["sums-head"]
    (action,) = cluster.reconcile().actions
    assert isinstance(action, ApplyObject)
    assert action.uid is None


def test_a_running_job_looks_nothing_up() -> None:
    cluster = SimulatedCluster()
    cluster.up()
    cluster.look_ups.clear()
    for _ in range(5):
        cluster.train(1)
        cluster.reconcile()
        cluster.advance(3600)
    assert not cluster.look_ups


# The claim.


def test_a_claim_that_was_enlarged_is_neither_shrunk_nor_in_the_way() -> None:
    cluster = SimulatedCluster()
    cluster.up()
    claim = cluster.children[CLAIM]["sums-checkpoint"]
    claim["spec"]["resources"]["requests"]["storage"] = "1Ti"
    assert plan(cluster.observed(), cluster.now).empty
    cluster.edit(checkpoint={"reclaimPolicy": "Delete"})
    (action,) = [a for a in cluster.reconcile().actions if not isinstance(a, CreateObject) and hasattr(a, "kind")]
    assert isinstance(action, PatchMetadata)
    assert set(action.metadata) == {"ownerReferences"}
    assert claim["spec"]["resources"]["requests"]["storage"] == "1Ti"


def test_a_claim_that_is_to_be_retained_after_all_outlives_the_job() -> None:
    cluster = SimulatedCluster(spec_of(checkpoint={"reclaimPolicy": "Delete"}))
    cluster.up()
    assert cluster.children[CLAIM]["sums-checkpoint"]["metadata"]["ownerReferences"]
    cluster.edit(checkpoint={"reclaimPolicy": "Retain"})
    cluster.settle()
    cluster.delete_job()
    assert names(cluster, CLAIM) == {"sums-checkpoint"}


def test_a_claim_that_is_to_be_deleted_after_all_goes_with_the_job() -> None:
    cluster = SimulatedCluster()
    cluster.up()
    cluster.edit(checkpoint={"reclaimPolicy": "Delete"})
    cluster.settle()
    cluster.delete_job()
    assert not names(cluster, CLAIM)


def pinned(cluster: SimulatedCluster) -> bool:
    pods = cluster.pods(Role.DRIVER) + cluster.pods(Role.TRAINER)
    assert pods
    found = {bool(pod["spec"].get("affinity", {}).get("podAffinity")) for pod in pods}
    (answer,) = found
    return answer


@pytest.mark.parametrize(("mode", "together"), [("ReadWriteMany", False), ("ReadWriteOnce", True)])
def test_pods_share_a_node_where_the_jobs_claim_is_for_one(mode: str, together: bool) -> None:
    cluster = SimulatedCluster(spec_of(checkpoint={"volume": {"accessMode": mode}}))
    cluster.settle()
    assert pinned(cluster) is together


@pytest.mark.parametrize(
    ("modes", "actual", "together"),
    [
        (("ReadWriteMany",), (), False),
        (("ReadWriteOnce",), (), True),
        (("ReadWriteOnce",), ("ReadWriteOnce", "ReadWriteMany"), False),
    ],
)
def test_the_access_mode_of_a_claim_that_was_brought_decides(
    modes: tuple[str, ...], actual: tuple[str, ...], together: bool
) -> None:
    """`volume.accessMode` says nothing about it: that is ReadWriteMany by default."""
    cluster = SimulatedCluster(spec_of(checkpoint={"claimName": "theirs"}))
    brought(cluster, "theirs", *modes, actual=actual)
    cluster.settle()
    assert pinned(cluster) is together


@pytest.mark.parametrize(
    ("mode", "together"), [("ReadWriteOnce", True), ("ReadOnlyMany", False), ("ReadWriteMany", False)]
)
def test_a_claim_that_a_job_resumes_from_is_read_by_all_its_pods(mode: str, together: bool) -> None:
    cluster = SimulatedCluster(spec_of(checkpoint={"resumeFrom": {"claimName": "before"}}))
    brought(cluster, "before", mode)
    cluster.settle()
    assert pinned(cluster) is together


def test_a_claim_for_one_pod_is_refused_with_field_and_cure() -> None:
    cluster = SimulatedCluster(spec_of(checkpoint={"claimName": "theirs"}))
    brought(cluster, "theirs", "ReadWriteOncePod")
    cluster.settle()
    status, reason, message = scheduled(cluster)
    assert (status, reason) == ("False", Reason.VOLUME_NOT_READY)
    assert message.startswith("spec.checkpoint.claimName: PersistentVolumeClaim theirs is ReadWriteOncePod")
    assert "ReadWriteMany" in message
    assert not cluster.pods()


def test_a_missing_claim_is_named_and_the_job_starts_when_it_is_there() -> None:
    cluster = SimulatedCluster(spec_of(checkpoint={"resumeFrom": {"claimName": "before"}}))
    cluster.settle()
    status, reason, message = scheduled(cluster)
    assert (status, reason) == ("False", Reason.VOLUME_NOT_READY)
    assert message.startswith("spec.checkpoint.resumeFrom.claimName: PersistentVolumeClaim before doesn't exist")
    assert cluster.planned()[1].look_again_seconds == 30
    brought(cluster, "before", "ReadWriteMany")
    cluster.up()
    assert cluster.status.phase is Phase.RUNNING
