"""Tells from a job's stored status how it waits for room: what other jobs' plans need to know of it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from longboat_crds.reasons import ConditionType, Reason
from longboat_operator.model import Object, Rank

_ENDED = frozenset({ConditionType.SUCCEEDED, ConditionType.FAILED})


def half_placed_rank(job: Object) -> Rank | None:
    """Returns the job's rank while some pods of its minimum have nodes, others don't, and none are being released; else None.

    Rule: a higher pod priority ranks before a lower one, then an older job before a younger one, then the uid decides.
    """
    placement = _waiting_placement(job)
    if not 0 < placement.get("placed", 0) < placement.get("minimum", 0):
        return None
    return rank(job, placement.get("priority", 0))


def rank(job: Object, priority: int) -> Rank:
    """Returns the rank of a job whose pods have this priority."""
    metadata = job["metadata"]
    return -priority, metadata.get("creationTimestamp") or "", metadata["uid"]


def keeps_unplaced_pods(job: Object) -> bool:
    """Whether the job has pods, and none of its minimum has a node; or may have some that a release has left, since they are gated."""
    placement = _waiting_placement(job)
    if placement:
        return not placement.get("placed")
    return _lives(job) and "retryTime" in ((job.get("status") or {}).get("placement") or {})


def is_refused_by_quota(job: Object) -> bool:
    """Whether a quota refuses a pod of a job that lacks some of its minimum.

    Rule: one whose rounds run with fewer rollout pods than it was granted waits for nothing that others should give up.
    """
    placement = (job.get("status") or {}).get("placement") or {}
    if placement.get("placed", 0) >= placement.get("minimum", 0):
        return False
    return _lives(job) and any(
        (each.get("type"), each.get("reason")) == (ConditionType.SCHEDULED, Reason.QUOTA_EXCEEDED)
        for each in (job.get("status") or {}).get("conditions") or ()
    )


def _waiting_placement(job: Object) -> Mapping[str, Any]:
    """Returns `status.placement` of a job that has pods and lacks nodes for some of its minimum; else nothing."""
    placement: Mapping[str, Any] = (job.get("status") or {}).get("placement") or {}
    if not _lives(job) or "since" not in placement or "releaseTime" in placement or "retryTime" in placement:
        return {}
    return placement


def _lives(job: Object) -> bool:
    return "deletionTimestamp" not in job["metadata"] and not any(
        each.get("type") in _ENDED and each.get("status") == "True"
        for each in (job.get("status") or {}).get("conditions") or ()
    )
