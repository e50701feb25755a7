"""When a pod is lost, and why. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from longboat_crds.reasons import Reason
from longboat_operator.plan.view import PodView
from longboat_operator.status.terminations import last_termination


@dataclass(frozen=True, slots=True)
class Loss:
    """Why a pod has to be replaced."""

    reason: Reason
    message: str


def loss_of(pod: PodView) -> Loss | None:
    """Why the pod can't serve any more; None while its containers may still run or be restarted in it.

    Rule: pods are `restartPolicy: Always`, so a container that ends is started again in place and is no loss. A pod is
    lost when it is being deleted (by a person, an eviction, a preemption, or because its node is gone: Kubernetes'
    condition `DisruptionTarget` says which) or when the kubelet gave it up (phase Failed; Succeeded at a node's
    shutdown).
    """
    disruption = pod.condition("DisruptionTarget")
    if pod.deleted_at is not None:
        if disruption.get("reason") == "DeletionByTaintManager":
            return Loss(Reason.NODE_LOST, f"node {_node(pod)} is gone or does not answer")
        if disruption:
            return Loss(Reason.POD_LOST, f"{disruption.get('reason')}: {disruption.get('message', '')}".rstrip(": "))
        return Loss(Reason.POD_LOST, "it was deleted")
    if pod.phase in {"Failed", "Succeeded"}:
        status = pod.raw["status"]
        ended = last_termination(pod.raw)
        known = [status.get("reason"), status.get("message"), ended.text if ended else None]
        text = "; ".join(str(part) for part in known if part)
        return Loss(Reason.POD_LOST, text or f"it ended with phase {pod.phase}")
    return None


def _node(pod: PodView) -> str:
    return str(pod.raw.get("spec", {}).get("nodeName", "?"))
