"""When a pod is lost, why, and whether that counts. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from longboat_crds.reasons import Reason
from longboat_operator.plan.view import PodView
from longboat_operator.status.terminations import last_termination, terminations
from longboat_operator.status.times import moment

# Reasons of the condition DisruptionTarget for which the pod can do nothing (source: Kubernetes, "Disruptions", pod
# disruption conditions). TerminationByKubelet is none of them: a pod that drives its node out of memory is at fault.
NO_FAULT = frozenset(
    {"EvictionByEvictionAPI", "PreemptionByScheduler", "DeletionByTaintManager", "DeletionByPodGC"}
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Loss:
    """Why a pod has to be replaced.

    `counted` says whether it uses the role's limit up. `time` is when it happened, None when nobody knows.
    """

    reason: Reason
    message: str
    counted: bool = True
    time: datetime | None = None


def loss_of(pod: PodView) -> Loss | None:
    """Why the pod can't serve any more; None while its containers may still run or be restarted in it.

    Rules:
    * pods are `restartPolicy: Always`, so a container that ends is started again in place and is no loss. A pod is lost
      when it is being deleted (by a person, an eviction, a preemption, or because its node is gone: Kubernetes'
      condition `DisruptionTarget` says which) or when the kubelet gave it up (phase Failed; Succeeded at a node's
      shutdown);
    * a loss counts unless Kubernetes took the pod away for `NO_FAULT` of its own.
    """
    disruption = pod.condition("DisruptionTarget")
    cause = disruption.get("reason") if disruption.get("status", "True") == "True" else None
    counted = cause not in NO_FAULT
    if pod.deleted_at is not None:
        since = pod.deleted_at - timedelta(seconds=pod.raw["metadata"].get("deletionGracePeriodSeconds") or 0)
        if cause == "DeletionByTaintManager":
            return Loss(Reason.NODE_LOST, f"node {pod.node or '?'} is gone or does not answer", counted, since)
        if cause:
            return Loss(Reason.POD_LOST, f"{cause}: {disruption.get('message', '')}".rstrip(": "), counted, since)
        return Loss(Reason.POD_LOST, "it was deleted", counted, since)
    if pod.phase in {"Failed", "Succeeded"}:
        status = pod.raw["status"]
        ended = last_termination(pod.raw)
        known = [status.get("reason"), status.get("message"), ended.text if ended else None]
        text = "; ".join(str(part) for part in known if part)
        return Loss(Reason.POD_LOST, text or f"it ended with phase {pod.phase}", counted, _end_of(pod))
    return None


def _end_of(pod: PodView) -> datetime | None:
    """When the last container of a pod that has ended did so."""
    times = [ended.time for ended in terminations(pod.raw) if ended.time]
    return max(map(moment, times), default=None)
