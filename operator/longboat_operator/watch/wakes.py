"""Which change is worth a plan. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from longboat_operator.kube.resources import RL_JOB
from longboat_operator.model import Object

# All that plans wait for in what a driver writes at round ends, and otherwise at most once a minute: `state` says that it
# started, ended or gave up, `incarnation` that another driver reports.
_TRAINING_THAT_MATTERS = ("state", "incarnation")


def wakes(old: Object | None, new: Object | None) -> bool:
    """Whether a trimmed object's change from `old` to `new` (None: not there) calls for a plan.

    Everything does but: resourceVersion and managed fields, which change with every write, and of a job `status.training`
    beyond `state` and `incarnation`. So a job that only reports steps costs no plan; `demand`, `checkpoint`, `problem`, the
    spec, metadata and the operator's own part of the status, should someone else change it, do.
    """
    if old is None or new is None:
        return old is not new
    return _essence(old) != _essence(new)


def _essence(obj: Object) -> dict[str, Any]:
    metadata = {k: v for k, v in obj["metadata"].items() if k not in ("resourceVersion", "managedFields")}
    if obj["kind"] != RL_JOB.kind:
        return {**obj, "metadata": metadata}
    status: Mapping[str, Any] = obj.get("status") or {}
    training = status.get("training") or {}
    matters = {key: training[key] for key in _TRAINING_THAT_MATTERS if key in training}
    return {**obj, "metadata": metadata, "status": {**status, "training": matters}}
