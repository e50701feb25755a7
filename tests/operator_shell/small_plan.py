"""A planner and manifests small enough to see what the shell makes of them: a Service, a Secret, `pods` pods, a phase."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from longboat_operator.model import (
    ANNOTATION_HASH,
    LABEL_JOB,
    LABEL_ROLE,
    ApplyObject,
    CapacityKey,
    CreateObject,
    DeleteObject,
    EmitEvent,
    JobKey,
    Object,
    Observed,
    Plan,
    PublishStatus,
    belongs_to,
    digest,
)
from longboat_operator.watch.cache import Cache

PODS = "test.longboat.dev/pods"


def manifest(namespace: str, name: str, pods: int = 2) -> dict[str, Any]:
    """An RLJob that wants so many pods."""
    return {
        "apiVersion": "longboat.dev/v1alpha1",
        "kind": "RLJob",
        "metadata": {"namespace": namespace, "name": name, "annotations": {PODS: str(pods)}},
        "spec": {
            "runtimeRef": {"name": "host"},
            "model": {"path": "/data/model", "dtype": "Float32"},
            "dataset": {"files": {"paths": ["/data/train.jsonl"]}},
            "algorithm": {"name": "GRPO", "groupSize": 2},
            "rounds": {"steps": 4, "promptsPerRound": 4},
            "rollout": {"sampling": {"maxTokens": 16}},
            "rewards": [{"name": "vowels", "function": "/data/reward.py:reward"}],
        },
    }


def observe(cache: Cache, key: JobKey) -> Observed:
    """The job and what is its own."""
    job = cache.job(key)
    if job is None:
        return Observed(key, None)
    uid = job["metadata"]["uid"]
    children = {
        kind: {name: obj for name, obj in objects.items() if belongs_to(obj, uid)}
        for kind, objects in cache.children(key).items()
    }
    return Observed(key, job, children)


def plan(observed: Observed, now: datetime) -> Plan:
    """Makes what is missing, removes pods that are too many, and says in `phase` whether all is there. Capacities have nothing to do."""
    del now
    job = observed.job
    if isinstance(observed.key, CapacityKey) or job is None or job["metadata"].get("deletionTimestamp"):
        return Plan()
    name = observed.key.name
    wanted = int(job["metadata"].get("annotations", {}).get(PODS, "0"))
    pods = observed.children["Pod"]
    actions: list[Any] = []
    service = _service(job)
    held = observed.children["Service"].get(name)
    if held is None or held["metadata"]["annotations"][ANNOTATION_HASH] != digest_of(service):
        actions.append(ApplyObject(service, held["metadata"]["uid"] if held else None))
    if not observed.children["Secret"] and not pods:
        actions.append(CreateObject(_secret(job, observed.random), random_key="token"))
    names = [f"{name}-{index}" for index in range(wanted)]
    actions += [
        CreateObject(pod(job, each), dry_run=name if each == names[0] else None) for each in names if each not in pods
    ]
    actions += [
        DeleteObject("Pod", each, held["metadata"]["uid"], grace_seconds=0)
        for each, held in pods.items()
        if each not in names and "deletionTimestamp" not in held["metadata"]
    ]
    phase = "Running" if set(names) <= set(pods) else "Failed" if observed.rejections else "Starting"
    if (job.get("status") or {}).get("phase") != phase:
        reason = "; ".join(observed.rejections.values()) or None
        actions.append(PublishStatus({"phase": phase} | ({"reason": reason[:200]} if reason else {})))
        actions.append(EmitEvent("Normal", "PhaseChanged", f"the job is {phase}"))
    return Plan(tuple(actions))


def digest_of(body: Object) -> str:
    """What the plan writes into the hash annotation."""
    return str(body["metadata"]["annotations"][ANNOTATION_HASH])


def pod(job: Object, name: str) -> dict[str, Any]:
    """A pod that no node takes, so that nothing but the API server has a part in it."""
    spec = {
        "containers": [{"name": "main", "image": "localhost/none:1", "resources": {"limits": {"cpu": "1"}}}],
        "nodeSelector": {"test.longboat.dev/none": "none"},
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": _metadata(job, name), "spec": spec}


def _service(job: Object) -> dict[str, Any]:
    name = job["metadata"]["name"]
    body: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _metadata(job, name),
        "spec": {"clusterIP": "None", "selector": {LABEL_JOB: name}, "ports": [{"port": 6379}]},
    }
    body["metadata"]["annotations"] = {ANNOTATION_HASH: digest(body)}
    return body


def _secret(job: Object, random: str) -> dict[str, Any]:
    metadata = _metadata(job, f"{job['metadata']['name']}-token-{random}")
    return {"apiVersion": "v1", "kind": "Secret", "immutable": True, "metadata": metadata}


def _metadata(job: Object, name: str) -> dict[str, Any]:
    owner = job["metadata"]
    return {
        "namespace": owner["namespace"],
        "name": name,
        "labels": {LABEL_JOB: owner["name"], LABEL_ROLE: "rollout"},
        "ownerReferences": [
            {
                "apiVersion": job["apiVersion"],
                "kind": job["kind"],
                "name": owner["name"],
                "uid": owner["uid"],
                "controller": True,
                "blockOwnerDeletion": True,
            }
        ],
    }
