"""Trims an object to what plans read. Pure.

With 10^5 pods in one process memory matters most: dictionaries are rebuilt from constant keys (so that all objects
share them), repeated values are shared, managed fields and noise such as image ids go.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from sys import intern
from typing import Any

from pydantic_core import from_json, to_json

from longboat_operator.model import content_digest

_METADATA = (
    "name",
    "namespace",
    "uid",
    "resourceVersion",
    "generation",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
)
_OWNER = ("apiVersion", "kind", "name", "uid", "controller", "blockOwnerDeletion")
_POD_STATUS = (
    "phase",
    "reason",
    "message",
    "podIP",
    "hostIP",
    "qosClass",
    "nominatedNodeName",
    "observedGeneration",
)
_CONDITION = ("type", "status", "reason", "message", "lastTransitionTime", "observedGeneration")
_CONTAINER = ("name", "resources", "restartPolicy")
_CONTAINER_STATUS = (
    "name",
    "ready",
    "started",
    "restartCount",
    "state",
    "lastState",
    "resources",
    "allocatedResources",
)


def trim(obj: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the part of an object that is kept: all but managed fields of RLJobs and runtimes, nothing but the identity of a node."""
    kind = obj["kind"]
    if kind == "Node":
        return {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": _pick(obj["metadata"], ("name", "uid", "resourceVersion")),
        }
    identity = {"apiVersion": intern(obj["apiVersion"]), "kind": intern(kind)}
    if kind in _BODIES:
        # A claim is patched, not applied, so its annotations are compared one by one, and all of them are kept.
        metadata = _metadata(obj["metadata"], annotated=kind == "PersistentVolumeClaim")
        return identity | {"metadata": metadata} | _BODIES[kind](obj)
    if kind in _WHOLE:
        metadata = {key: value for key, value in obj["metadata"].items() if key != "managedFields"}
        return {**obj, "metadata": metadata}
    return identity | {"metadata": _metadata(obj["metadata"])}


def _metadata(metadata: Mapping[str, Any], *, annotated: bool = False) -> dict[str, Any]:
    result = _pick(metadata, _METADATA)
    if labels := metadata.get("labels"):
        result["labels"] = {intern(key): intern(value) for key, value in labels.items()}
    annotations = {
        intern(key): value
        for key, value in (metadata.get("annotations") or {}).items()
        if annotated or "longboat.dev/" in key
    }
    if annotations:
        result["annotations"] = annotations
    if finalizers := metadata.get("finalizers"):
        result["finalizers"] = _shared(finalizers)
    if owners := metadata.get("ownerReferences"):
        result["ownerReferences"] = _shared([_pick(owner, _OWNER) for owner in owners])
    return result


def _pod(pod: Mapping[str, Any]) -> dict[str, Any]:
    spec, status = pod.get("spec") or {}, pod.get("status") or {}
    kept_spec = _pick(spec, ("nodeName", "restartPolicy", "priority"))
    if gates := spec.get("schedulingGates"):
        kept_spec["schedulingGates"] = _shared(gates)
    for name in ("initContainers", "containers"):
        if containers := spec.get(name):
            kept_spec[name] = [_shared(_pick(container, _CONTAINER)) for container in containers]
    kept_status = _pick(status, _POD_STATUS)
    if conditions := status.get("conditions"):
        kept_status["conditions"] = [_shared(_pick(condition, _CONDITION)) for condition in conditions]
    for name in ("initContainerStatuses", "containerStatuses"):
        if statuses := status.get(name):
            kept_status[name] = [_container_status(container) for container in statuses]
    return {"spec": kept_spec, "status": kept_status} | _pick(pod, ("serverTimes",))


def _container_status(status: Mapping[str, Any]) -> dict[str, Any]:
    picked = _pick(status, _CONTAINER_STATUS)
    return {key: _shared(value) if isinstance(value, dict) else value for key, value in picked.items()}


def _claim(claim: Mapping[str, Any]) -> dict[str, Any]:
    status = _pick(claim.get("status") or {}, ("phase", "capacity", "accessModes"))
    return {"spec": claim.get("spec") or {}, "status": status}


def _digested(obj: Mapping[str, Any]) -> dict[str, Any]:
    return {"digest": content_digest(obj)}


def _account(account: Mapping[str, Any]) -> dict[str, Any]:
    return _digested(account) | _pick(account, ("imagePullSecrets",))


def _revision(revision: Mapping[str, Any]) -> dict[str, Any]:
    return {"data": _shared(revision.get("data")), "revision": revision.get("revision")}


def _pick(source: Mapping[str, Any], keys: Iterable[str]) -> dict[str, Any]:
    return {key: source[key] for key in keys if key in source}


def _shared(value: Any) -> Any:
    """Returns an equal value, which other objects may share: what the cache holds must not be changed."""
    return _parsed(to_json(value))


@lru_cache(maxsize=16_384)
def _parsed(text: bytes) -> Any:
    return from_json(text)


_BODIES: Mapping[str, Callable[[Mapping[str, Any]], dict[str, Any]]] = {
    "Pod": _pod,
    "PersistentVolumeClaim": _claim,
    "ControllerRevision": _revision,
    "ServiceAccount": _account,
    **dict.fromkeys(("Service", "Role", "RoleBinding", "NetworkPolicy", "PodDisruptionBudget"), _digested),
}
_WHOLE = frozenset({"RLJob", "RLRuntime", "ClusterRLRuntime"})
