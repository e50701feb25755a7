"""What is kept of objects."""

from __future__ import annotations

import copy
from typing import Any

from longboat_operator.watch.trim import trim
from longboat_operator.watch.wakes import wakes_job

POD: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {
        "namespace": "a",
        "name": "x-rollout-0-a0",
        "uid": "1",
        "resourceVersion": "7",
        "labels": {"longboat.dev/job": "x"},
        "annotations": {"longboat.dev/revision": "abc", "kubectl.kubernetes.io/noise": "y"},
        "ownerReferences": [{"apiVersion": "longboat.dev/v1alpha1", "kind": "RLJob", "name": "x", "uid": "u"}],
        "managedFields": [{"manager": "kubelet", "fieldsV1": {"f:status": {}}}],
    },
    "spec": {
        "nodeName": "node0",
        "priority": 100,
        "priorityClassName": "high",
        "schedulingGates": [{"name": "example.com/queue"}],
        "containers": [
            {
                "name": "rollout",
                "image": "i",
                "resources": {"limits": {"cpu": "1"}},
                "env": [{"name": "A", "value": "b"}],
            }
        ],
        "volumes": [{"name": "shm", "emptyDir": {}}],
    },
    "status": {
        "phase": "Running",
        "podIP": "10.0.0.1",
        "conditions": [{"type": "Ready", "status": "True", "lastProbeTime": None, "lastTransitionTime": "t"}],
        "containerStatuses": [
            {
                "name": "rollout",
                "ready": True,
                "restartCount": 2,
                "image": "i",
                "imageID": "sha",
                "containerID": "c",
                "state": {"running": {"startedAt": "t"}},
                "lastState": {"terminated": {"exitCode": 1, "message": "boom"}},
                "allocatedResources": {"cpu": "1"},
                "resources": {"limits": {"cpu": "1"}},
            }
        ],
    },
}


def test_a_pod_keeps_what_plans_read_and_nothing_else() -> None:
    kept = trim(POD)
    assert kept["metadata"]["ownerReferences"][0]["uid"] == "u"
    assert kept["metadata"]["annotations"] == {"longboat.dev/revision": "abc"}
    assert "managedFields" not in kept["metadata"]
    assert kept["spec"] == {
        "nodeName": "node0",
        "priority": 100,
        "schedulingGates": [{"name": "example.com/queue"}],
        "containers": [{"name": "rollout", "resources": {"limits": {"cpu": "1"}}}],
    }
    (container,) = kept["status"]["containerStatuses"]
    assert container["lastState"]["terminated"]["message"] == "boom"
    assert container["allocatedResources"] == {"cpu": "1"}
    assert not {"image", "imageID", "containerID"} & set(container)


def test_a_pod_keeps_its_finalizers() -> None:
    """They say why it is still there although it has ended."""
    kept = trim({**POD, "metadata": {**POD["metadata"], "finalizers": ["backup.example.com/hold"]}})
    assert kept["metadata"]["finalizers"] == ["backup.example.com/hold"]


def test_of_a_node_nothing_is_kept_that_its_kubelet_writes() -> None:
    node = {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": "node0", "uid": "1", "resourceVersion": "7", "labels": {"a": "b"}, "managedFields": [{}]},
        "spec": {"unschedulable": True},
        "status": {"images": [{"names": ["i"]}], "conditions": [{"type": "Ready", "lastHeartbeatTime": "t"}]},
    }
    kept = trim(node)
    assert kept["metadata"] == {"name": "node0", "uid": "1", "resourceVersion": "7"}
    assert kept.keys() == {"apiVersion", "kind", "metadata"}
    assert trim(kept) == kept
    beat = {**node, "metadata": {**node["metadata"], "resourceVersion": "8", "labels": {}}, "status": {}}  # type: ignore[dict-item]
    assert not wakes_job(kept, trim(beat))
    assert wakes_job(None, kept)
    assert wakes_job(kept, None)


def test_trimming_leaves_the_original_alone_and_is_idempotent() -> None:
    before = copy.deepcopy(POD)
    kept = trim(POD)
    assert before == POD
    assert trim(kept) == kept


def test_a_change_of_noise_is_no_change() -> None:
    noisy = copy.deepcopy(POD)
    noisy["metadata"]["resourceVersion"] = "8"
    noisy["status"]["conditions"][0]["lastProbeTime"] = "now"
    assert not wakes_job(trim(POD), trim(noisy))
    noisy["status"]["containerStatuses"][0]["restartCount"] = 3
    assert wakes_job(trim(POD), trim(noisy))


def test_a_job_stays_whole_but_for_managed_fields() -> None:
    job = {
        "apiVersion": "g/v1",
        "kind": "RLJob",
        "metadata": {"name": "x", "managedFields": []},
        "spec": {"a": 1},
        "status": {},
    }
    assert trim(job) == {**job, "metadata": {"name": "x"}}


def test_equal_revisions_share_their_template() -> None:
    def revision(name: str) -> dict[str, Any]:
        data = {"image": "i", "roles": {"driver": {"template": {}}}}
        return {
            "apiVersion": "apps/v1",
            "kind": "ControllerRevision",
            "metadata": {"name": name},
            "data": data,
            "revision": 1,
        }

    first, second = trim(revision("x")), trim(revision("y"))
    assert first["data"] == revision("x")["data"]
    assert first["data"] is second["data"]


def test_a_secret_keeps_no_value() -> None:
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "x"}, "stringData": {"token": "hush"}}
    assert "hush" not in str(trim(secret))


def test_of_an_object_that_is_applied_the_digest_of_its_content_is_kept() -> None:
    """What others write into it wakes its job; what stands in its metadata and status alone doesn't count."""

    def policy(spec: dict[str, Any], **metadata: Any) -> dict[str, Any]:
        named = {"name": "x", **metadata}
        return {"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": named, "spec": spec}

    ours = trim(policy({"podSelector": {}}))
    assert "spec" not in ours
    assert not wakes_job(ours, trim(policy({"podSelector": {}}, resourceVersion="9", managedFields=[1])))
    assert wakes_job(ours, trim(policy({"podSelector": {}, "ingress": [{}]})))


def test_each_sign_of_a_resize_that_is_carried_out_wakes_the_job() -> None:
    before = trim(POD)
    for path, value in (
        (("metadata", "generation"), 2),
        (("status", "observedGeneration"), 2),
        (("spec", "containers", 0, "resources"), {"limits": {"cpu": "2"}}),
        (("status", "containerStatuses", 0, "resources"), {"limits": {"cpu": "2"}}),
        (("status", "containerStatuses", 0, "allocatedResources"), {"cpu": "2"}),
        (("status", "conditions"), [{"type": "PodResizePending", "status": "True", "reason": "Deferred"}]),
    ):
        pod = copy.deepcopy(POD)
        place: Any = pod
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] = value
        assert wakes_job(before, trim(pod)), path
