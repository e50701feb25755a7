"""Decides which change of a trimmed object calls for a plan. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from longboat_crds.base import Role
from longboat_crds.reasons import ConditionType
from longboat_operator.kube.resources import POD, RL_JOB
from longboat_operator.model import LABEL_ROLE, Object
from longboat_operator.pods.roles import ROLES, SCALED_ROLES
from longboat_operator.reading.intact import IDENTITY, SEEN, stored_records
from longboat_operator.reading.status import RESHAPE_IDENTITY
from longboat_operator.reading.terminations import is_ready

# All that a job's plan waits for in what a driver reports of its progress: `state` says that it started, ended or gave up,
# `incarnation` that another driver reports.
_TRAINING_THAT_MATTERS = ("state", "incarnation")
# All that a plan of the job or its capacity waits for in `status.placement`; counts and clocks only say what the last plan saw.
_PLACEMENT_THAT_MATTERS = ("releaseTime", "retryTime")
# What a job's plan publishes and doesn't read, or which tells the next plan no more than what it was made from.
_SHOWN = ("operator", "phase", "reason", "observedGeneration", "selector", "reported")
_SHOWN_OF_A_ROLE = ("desired", "ready", "readyText", "pools")
_CONDITIONS_READ_BACK = (ConditionType.RUNNING, ConditionType.SUSPENDED, ConditionType.SUCCEEDED, ConditionType.FAILED)
_OF_A_CONDITION = ("type", "status", "reason")
_REWARD_DEMAND = ("incarnation", "number", "pools")
_CONDITIONS_OF_A_CAPACITY = (ConditionType.SUSPENDED, ConditionType.SUCCEEDED, ConditionType.FAILED)
_ROLLOUT_DEMAND = ("incarnation", "number", "replicas", "giveFirst")
_BOUNDS_OF_A_POOL = ("name", "replicas", "minReplicas")
_DEMANDS_FOR_PODS = ("rollout", "environment")
_ANSWERED_BY_A_CAPACITY = (*_DEMANDS_FOR_PODS, "reward")


def wakes_job(old: Object | None, new: Object | None) -> bool:
    """Returns whether an object's change from `old` to `new` (None: not there) calls for a plan of its job.

    Every change does, except changes of:
    * resourceVersion and managed fields, which change with every write;
    * a job's `status.training` other than `state`, `incarnation` and new reshapes, so that reports of steps cost no plan;
    * its demands for rollout and environment pods, other than the incarnation and which leaving pods are drained: its capacity's plan
      answers the rest;
    * its demand for CPUs of reward pods, which its capacity's plan answers.

    So changes of the spec, the grant, `checkpoint` and `problem` do, and changes that others make to the operator's part of the status.
    """
    if old is None or new is None:
        return old is not new
    return _of_a_job(old) != _of_a_job(new)


def wakes_its_writer(old: Object | None, new: Object | None) -> bool:
    """Whether a change of a job that is nothing but the status that a plan has published calls for another plan.

    Rule: it does if the change is of anything that rules read back, such as what became of known pods, or that the job has ended.
    What follows from what that plan has seen (phase, counts, most conditions, the text and time of the others) would do so again.
    The first record of a pod to which nothing has happened yet calls for none either: it says no more than the pod itself.
    """
    if old is None or new is None:
        return True
    before, after = _read_back(old.get("status") or {}), _read_back(new.get("status") or {})
    if before == after:
        return False
    return before != {**after, "roles": _without_new_pods(after["roles"], before["roles"])}


def wakes_its_grantor(old: Object | None, new: Object | None) -> bool:
    """Returns whether a grant that its capacity's plan has published in a job calls for another such plan.

    Rule: it doesn't, unless anything else that the plan reads has changed: the same demand, bounds and pods get the same again.
    """
    before, after = (_of_a_capacity(obj) if obj is not None else {} for obj in (old, new))
    return _wakes_capacity(before and {**before, "grant": None}, after and {**after, "grant": None})


def wakes_capacity(old: Object | None, new: Object | None) -> bool:
    """Returns whether an object's change from `old` to `new` (None: not there) calls for a plan of its job's capacity.

    Only what that plan reads does:
    * of a job, whether it is suspended, released, finished or being deleted, and its incarnation;
    * also the bounds, demands and grant of rollout and environment pods and of reward pools' CPUs, and which of these pods its status no
      longer records;
    * of a rollout or environment pod, its identity, its phase, whether it is ready or being deleted, and its finalizers.
    """
    before, after = (_of_a_capacity(obj) if obj is not None else None for obj in (old, new))
    return _wakes_capacity(before, after)


def tells_of_resize(old: Object | None, new: Object | None) -> bool:
    """Whether a change tells how far a node is with other CPUs for a reward pod: CPUs that are to move wait for it."""
    if old is None or new is None or not _is_pod_of(Role.REWARD, new):
        return False
    return _of_a_resize(old.get("status") or {}) != _of_a_resize(new.get("status") or {})


def _of_a_resize(status: Mapping[str, Any]) -> list[Any]:
    return [
        *(_pick(each, ("resources", "allocatedResources")) for each in status.get("containerStatuses") or ()),
        *(each for each in status.get("conditions") or () if each["type"].startswith("PodResize")),
    ]


def _wakes_capacity(before: Mapping[str, Any] | None, after: Mapping[str, Any] | None) -> bool:
    """Whether a change between two results of `_of_a_capacity` wakes the capacity: any does, unless it only adds records.

    A record that is added tells of a pod that is there; one that goes frees the name of a pod that left.
    """
    if not before or not after or "records" not in before or "records" not in after:
        return before != after
    return not before["records"] <= after["records"] or before != {**after, "records": before["records"]}


def _of_a_job(obj: Object) -> dict[str, Any]:
    metadata = {k: v for k, v in obj["metadata"].items() if k not in ("resourceVersion", "managedFields")}
    if obj["kind"] != RL_JOB.kind:
        return {**obj, "metadata": metadata}
    status = dict(obj.get("status") or {})
    training = status.get("training") or {}
    status["training"] = _pick(training, _TRAINING_THAT_MATTERS) | {
        "reshapes": [_pick(reshape, RESHAPE_IDENTITY) for reshape in training.get("reshapes") or ()]
    }
    if demand := status.get("demand") or {}:
        grant = (status.get("allocation") or {}).get("grant") or {}
        status["demand"] = {key: value for key, value in demand.items() if key not in _ANSWERED_BY_A_CAPACITY} | {
            key: {"incarnation": demand[key].get("incarnation"), "drained": _drained(demand[key], grant.get(key) or {})}
            for key in _DEMANDS_FOR_PODS
            if key in demand
        }
    return {**obj, "metadata": metadata, "status": status}


def _drained(demand: Mapping[str, Any], grant: Mapping[str, Any]) -> list[str]:
    """Returns which of the pods that the grant takes back are drained, in the grant's order."""
    drained = {pod for part in (demand, *(demand.get("pools") or ())) for pod in part.get("drained") or ()}
    leaving = [each["pod"] for part in (grant, *(grant.get("pools") or ())) for each in part.get("leaving") or ()]
    return [pod for pod in leaving if pod in drained]


def _read_back(status: Mapping[str, Any]) -> dict[str, Any]:
    result = {key: value for key, value in status.items() if key not in _SHOWN}
    result["placement"] = _pick(status.get("placement") or {}, _PLACEMENT_THAT_MATTERS)
    result["allocation"] = {k: v for k, v in (status.get("allocation") or {}).items() if k != "rolloutReplicas"}
    conditions = status.get("conditions") or ()
    result["conditions"] = [
        _pick(each, _OF_A_CONDITION) for each in conditions if each["type"] in _CONDITIONS_READ_BACK
    ]
    roles = status.get("roles") or {}
    result["roles"] = {role: _role_read_back(roles[role]) for role in Role if role in roles}
    return result


def _role_read_back(role: Mapping[str, Any]) -> dict[str, Any]:
    result = {key: value for key, value in role.items() if key not in (*_SHOWN_OF_A_ROLE, "intact")}
    result["pods"] = {
        (record.get("pool"), record["index"]): {k: v for k, v in record.items() if k not in SEEN}
        for record in stored_records(role)
    }
    return result


def _without_new_pods(roles: Mapping[str, Any], old_roles: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the roles as read back, without a place's first record while nothing has happened to its pod."""
    result = {}
    for name, role in roles.items():
        old_records = (old_roles.get(name) or {}).get("pods", {})
        records = {place: r for place, r in role["pods"].items() if place in old_records or _has_a_history(r)}
        result[name] = {**role, "pods": records}
    return result


def _has_a_history(record: Mapping[str, Any]) -> bool:
    """Whether anything has happened to the pod of a record, or to one that it replaced."""
    return any(value for name, value in record.items() if name not in IDENTITY)


def _of_a_capacity(obj: Object) -> dict[str, Any] | None:
    metadata: Mapping[str, Any] = obj["metadata"]
    identity = _pick(metadata, ("uid", "deletionTimestamp"))
    if obj["kind"] == RL_JOB.kind:
        spec, status = obj.get("spec") or {}, obj.get("status") or {}
        rollout, demand = spec.get("rollout") or {}, status.get("demand") or {}
        allocation = status.get("allocation") or {}
        roles, environment = status.get("roles") or {}, demand.get("environment") or {}
        return {
            **identity,
            "spec": [spec.get("suspend"), rollout.get("replicas"), rollout.get("minReplicas")],
            "suspending": status.get("suspendTime"),
            "placement": _pick(status.get("placement") or {}, _PLACEMENT_THAT_MATTERS),
            "conditions": {
                (condition["type"], condition["status"])
                for condition in status.get("conditions") or ()
                if condition["type"] in _CONDITIONS_OF_A_CAPACITY
            },
            "incarnation": (allocation.get("incarnation") or {}).get("number"),
            "grant": allocation.get("grant"),
            "demand": _pick(demand.get("rollout") or {}, _ROLLOUT_DEMAND),
            "reward": [
                spec.get("rewardCpu"),
                spec.get("rewardPools") if "rewardCpu" in spec else None,
                _pick(demand.get("reward") or {}, _REWARD_DEMAND),
            ],
            "environment": [
                [_pick(pool, _BOUNDS_OF_A_POOL) for pool in spec.get("environmentPools") or ()],
                _pick(environment, ("incarnation", "number")),
                [_pick(pool, ("name", *_ROLLOUT_DEMAND)) for pool in environment.get("pools") or ()],
            ],
            "records": {
                (role, record.get("pool"), record["index"], record["attempt"])
                for role in SCALED_ROLES
                for record in stored_records(roles.get(role) or {})
            },
        }
    for role in SCALED_ROLES:
        if _is_pod_of(role, obj):
            fate = _pick(metadata, ("deletionGracePeriodSeconds", "finalizers"))
            ready = is_ready(obj, ROLES[role].containers)
            return {**identity, **fate, "phase": (obj.get("status") or {}).get("phase"), "ready": ready}
    return None


def _is_pod_of(role: Role, obj: Object) -> bool:
    return bool(obj["kind"] == POD.kind and (obj["metadata"].get("labels") or {}).get(LABEL_ROLE) == role)


def _pick(source: Mapping[str, Any], keys: tuple[str, ...]) -> dict[str, Any]:
    return {key: source[key] for key in keys if key in source}
