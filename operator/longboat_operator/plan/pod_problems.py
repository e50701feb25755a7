"""Finds what is wrong with a pod that is not ready, or with a foreign container of one that is. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from longboat_crds.reasons import Reason
from longboat_operator.plan.losses import Loss
from longboat_operator.reading.terminations import how_it_ended, last_termination, terminations
from longboat_operator.reading.times import seconds_until
from longboat_operator.reading.view import JobView, PodView

# Waiting reasons of the kubelet (pkg/kubelet/images, pkg/kubelet/kuberuntime).
_IMAGE = frozenset(
    {"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "ImageInspectError",
     "RegistryUnavailable", "SignatureValidationFailed"}
)  # fmt: skip
_CONTAINER = frozenset(
    {"CreateContainerConfigError", "CreateContainerError", "RunContainerError", "PreCreateHookError",
     "PostStartHookError"}
)  # fmt: skip

# How long a container has to run before its failures are forgotten: then the kubelet's back-off starts over (pkg/kubelet, backOffPeriod).
STEADY_SECONDS = 600.0


@dataclass(frozen=True, slots=True)
class PodProblem:
    """Says what is wrong with a pod."""

    reason: Reason
    message: str


def scheduling_problem(pod: PodView) -> PodProblem | None:
    """Returns why the pod isn't scheduled: its scheduling gates, or the message of a False condition PodScheduled; else None."""
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
    """Returns what is wrong with the pod, such as its `loss`; None if nothing is known to be.

    Rule: the role's own containers come first. Foreign ones matter only while the pod isn't ready, since it may be waiting for them.
    """
    if loss:
        return PodProblem(loss.reason, f"pod {pod.name}: {loss.message}")
    if unscheduled := scheduling_problem(pod):
        return unscheduled
    problem = _container_problem(pod, pod.own_statuses)
    return problem if problem or pod.ready else _container_problem(pod, pod.foreign_statuses)


def _container_problem(pod: PodView, statuses: list[Mapping[str, Any]]) -> PodProblem | None:
    for status in statuses:
        if problem := _not_started(pod, status):
            return problem
        if _waiting(status).get("reason") == "CrashLoopBackOff" and (ended := last_termination(statuses)):
            return PodProblem(ended.reason, f"pod {pod.name}: {ended.text}")
        for ended in terminations([status]):
            if ended.reason is Reason.DRIVER_SILENT and not status.get("ready"):
                return PodProblem(ended.reason, f"pod {pod.name}: {ended.text}")
    return None


def _not_started(pod: PodView, status: Mapping[str, Any]) -> PodProblem | None:
    waiting = _waiting(status)
    reason, message = waiting.get("reason"), waiting.get("message") or ""
    where = f"pod {pod.name}: container {status['name']}"
    if reason in _IMAGE:
        return PodProblem(Reason.IMAGE_PULL_FAILED, f"{where}: {_pull_text(message) or reason}")
    if reason in _CONTAINER:
        return PodProblem(Reason.CONTAINER_NOT_STARTED, f"{where}: {reason}: {message}".rstrip(": "))
    return None


def _waiting(status: Mapping[str, Any]) -> Mapping[str, Any]:
    return (status.get("state") or {}).get("waiting") or {}


@dataclass(frozen=True, slots=True)
class ForeignContainers:
    """The first failing container that isn't ours, and the seconds until the next look; None each if there is nothing to report."""

    problem: PodProblem | None = None
    wait: float | None = None


def foreign_containers(view: JobView, now: datetime) -> ForeignContainers:
    """Finds the first failing foreign container, in start order.

    Rule: it doesn't start, or it ended with an error and has not run for `STEADY_SECONDS` since. Its last log lines are left out: they may
    differ each time, and each new message costs a write.
    """
    problem: PodProblem | None = None
    waits: list[float] = []
    for pod in view.all_pods:
        for status in pod.foreign_statuses if pod.deleted_at is None else ():
            failure, wait = _foreign_problem(pod, status, now)
            problem = problem or failure
            waits += [wait] if wait else []
    return ForeignContainers(problem, min(waits, default=None))


def _foreign_problem(pod: PodView, status: Mapping[str, Any], now: datetime) -> tuple[PodProblem | None, float | None]:
    """Returns what is wrong with a foreign container, and in how many seconds that is forgotten if it keeps running."""
    if waits := _not_started(pod, status):
        return PodProblem(Reason.FOREIGN_CONTAINER_FAILING, f"{waits.message} (not one of Longboat's containers)"), None
    state = status.get("state") or {}
    ended = state.get("terminated") or (status.get("lastState") or {}).get("terminated")
    if not ended or not ended.get("exitCode"):
        return None, None
    wait = None
    if since := (state.get("running") or {}).get("startedAt"):
        wait = seconds_until(since, STEADY_SECONDS, now)
        if wait <= 0:
            return None, None
    text = f"pod {pod.name}: container {status['name']} (not one of Longboat's) {how_it_ended(ended)}"
    return PodProblem(Reason.FOREIGN_CONTAINER_FAILING, text), wait


def _pull_text(message: str) -> str:
    """Returns what follows `ErrImagePull: `, else the whole message: the kubelet's `Back-off pulling image` before it comes and goes."""
    _, separator, cause = message.partition("ErrImagePull: ")
    return cause if separator else message
