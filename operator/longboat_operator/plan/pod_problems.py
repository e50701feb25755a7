"""Finds what is wrong with a pod that is not ready. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from longboat_crds.reasons import Reason
from longboat_operator.plan.losses import Loss
from longboat_operator.reading.terminations import container_statuses, last_termination
from longboat_operator.reading.view import PodView

# Waiting reasons of the kubelet (pkg/kubelet/images, pkg/kubelet/kuberuntime).
_IMAGE = frozenset(
    {"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "ImageInspectError",
     "RegistryUnavailable", "SignatureValidationFailed"}
)  # fmt: skip
_CONTAINER = frozenset(
    {"CreateContainerConfigError", "CreateContainerError", "RunContainerError", "PreCreateHookError",
     "PostStartHookError"}
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class PodProblem:
    """Says what is wrong with a pod."""

    reason: Reason
    message: str


def scheduling_problem(pod: PodView) -> PodProblem | None:
    """Returns why the pod isn't scheduled: its gates, or the message of its PodScheduled condition; None unless that condition is False."""
    if pod.gates:
        return PodProblem(Reason.SCHEDULING_GATED, f"pod {pod.name}: waits for scheduling gates {', '.join(pod.gates)}")
    condition = pod.condition("PodScheduled")
    if condition.get("status") != "False":
        return None
    message = str(condition.get("message") or condition.get("reason") or "not scheduled")
    about_claims = "persistentvolumeclaim" in message.lower()
    return PodProblem(
        Reason.VOLUME_NOT_READY if about_claims else Reason.POD_UNSCHEDULABLE, f"pod {pod.name}: {message}"
    )


def problem_of(pod: PodView, loss: Loss | None) -> PodProblem | None:
    """Returns what is wrong with the pod, such as its `loss`; None if nothing is known to be."""
    if loss:
        return PodProblem(loss.reason, f"pod {pod.name}: {loss.message}")
    if unscheduled := scheduling_problem(pod):
        return unscheduled
    for status in container_statuses(pod.raw):
        waiting = (status.get("state") or {}).get("waiting") or {}
        reason, message = waiting.get("reason"), waiting.get("message") or ""
        where = f"pod {pod.name}: container {status['name']}"
        if reason in _IMAGE:
            return PodProblem(Reason.IMAGE_PULL_FAILED, f"{where}: {_pull_text(message) or reason}")
        if reason in _CONTAINER:
            return PodProblem(Reason.CONTAINER_NOT_STARTED, f"{where}: {reason}: {message}".rstrip(": "))
        if reason == "CrashLoopBackOff" and (ended := last_termination(pod.raw)):
            return PodProblem(ended.reason, f"pod {pod.name}: {ended.text}")
    return None


def _pull_text(message: str) -> str:
    """Returns what follows `ErrImagePull: `, else the whole message: the kubelet's `Back-off pulling image` before it comes and goes."""
    _, separator, cause = message.partition("ErrImagePull: ")
    return cause if separator else message
