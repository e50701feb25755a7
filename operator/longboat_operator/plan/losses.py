"""Decides when a pod is lost, why, and whether that counts. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

from longboat_crds.base import Role
from longboat_crds.reasons import Reason
from longboat_operator.pods.roles import ROLES
from longboat_operator.reading.intact import records_of
from longboat_operator.reading.terminations import container_statuses, last_termination, terminations
from longboat_operator.reading.times import moment
from longboat_operator.reading.view import JobView, PodView

# Reasons in a pod's status by which the kubelet says that its node is shutting down: it ended the pod, or no longer admitted it
# (Kubernetes, pkg/kubelet/nodeshutdown).
NODE_SHUTDOWN = frozenset({"Terminated", "NodeShutdown"})
# Reasons of the condition DisruptionTarget that tell of a node that is gone (source: Kubernetes, "Pod disruption conditions").
_NODE_GONE = frozenset({"DeletionByTaintManager", "DeletionByPodGC"})

# A healthy agent restarts what failed within seconds; an unhealthy one fails its liveness probe for a minute, and the
# kubelet then restarts its container. Twice what both may take, including the default grace.
UNREADY_SECONDS = 300.0
# How often a pod that the watch doesn't show is looked up, until it is gone.
UNWATCHED_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Loss:
    """Says why a pod has to be replaced.

    `counted` says whether it counts towards the role's limit. `time` is when it happened, None if unknown.
    """

    reason: Reason
    message: str
    counted: bool = True
    time: datetime | None = None


@dataclass(frozen=True, slots=True)
class Lost:
    """Pods that can't serve any more, by uid; pods that are gone and whose last state is known, by name.

    `wait` is the time until another one counts as stuck.
    """

    pods: Mapping[str, Loss] = field(default_factory=dict)
    gone: Mapping[str, Loss] = field(default_factory=dict)
    wait: float | None = None


def lost_pods(view: JobView, now: datetime) -> Lost:
    """Finds all pods of the job that are lost or stuck, and when to look again: at those that may get stuck, or that no watch shows.

    Pods that are gone are judged by the last state that the watch showed of them.
    """
    lost: dict[str, Loss] = {}
    waits: list[float] = []
    gone = {pod.name: loss for pod in view.last_states if (loss := loss_of(pod))}
    for role in ROLES:
        ready_once = {(r.pool or "", r.index, r.attempt) for r in records_of(view.published(role)) if r.was_ready}
        for pod in view.pods[role]:
            if pod.unwatched and not pod.ended:
                waits.append(UNWATCHED_SECONDS)
            if loss := loss_of(pod):
                lost[pod.uid] = loss
            elif pod.ready:
                continue
            elif (*pod.place, pod.attempt) in ready_once and (since := _stuck_since(view, role, pod)):
                remaining = UNREADY_SECONDS - (now - since).total_seconds()
                if remaining > 0:
                    waits.append(remaining)
                else:
                    text = f"not ready for {UNREADY_SECONDS:g} s, and node {pod.node or '?'} can't restart it"
                    lost[pod.uid] = Loss(Reason.POD_STUCK, text, time=since)
    return Lost(_dated(lost, now), _dated(gone, now), min(waits, default=None))


def _dated(losses: Mapping[str, Loss], now: datetime) -> dict[str, Loss]:
    return {key: loss if loss.time else replace(loss, time=now) for key, loss in losses.items()}


def disruptions(view: JobView, lost: Lost) -> frozenset[datetime]:
    """Returns when pods were recently removed through no fault of their own, according to pods and the restart history."""
    now_gone = {loss.time for loss in (*lost.pods.values(), *lost.gone.values()) if not loss.counted and loss.time}
    recorded = {
        moment(record.time)
        for record in view.status.restart_history or ()
        if not record.counted and record.reason in {Reason.POD_LOST, Reason.NODE_LOST}
    }
    return frozenset(now_gone | recorded)


def _stuck_since(view: JobView, role: Role, pod: PodView) -> datetime | None:
    """Returns since when the pod has been stuck, should it stay like this for `UNREADY_SECONDS`; None if it is not.

    Rule: all its containers and sidecars run, and one of ours is not ready although the pod has nothing to wait for: the driver's pod,
    which has the Ray head that others join, is ready. Most likely such a container can't be ended in place, whatever its liveness probe
    says: one of its processes waits in the kernel for storage or a device, and survives SIGKILL. The caller knows that the pod was ready
    once.
    """
    ready = pod.condition("Ready")
    if ready.get("status") != "False" or not ready.get("lastTransitionTime"):
        return None
    init = pod.raw["spec"].get("initContainers") or ()
    # These have ended before the pod's containers start.
    before = {container["name"] for container in init if container.get("restartPolicy") != "Always"}
    statuses = [status for status in container_statuses(pod.raw) if status["name"] not in before]
    running = [(status.get("state") or {}).get("running") for status in statuses]
    if not running or not all(running):
        return None
    if not all(status.get("ready") for status in pod.foreign_statuses if status in statuses):
        return None  # The condition Ready covers all containers, so it doesn't say since when one of ours isn't ready.
    if all(status.get("ready") for status in pod.own_statuses):
        return None
    times = [ready["lastTransitionTime"], *(state["startedAt"] for state in running if state and "startedAt" in state)]
    if role is not Role.DRIVER:
        drivers = [driver.condition("Ready") for driver in view.pods[Role.DRIVER] if driver.ready]
        if not drivers:
            return None
        times += [condition["lastTransitionTime"] for condition in drivers if "lastTransitionTime" in condition]
    return max(map(moment, times))


def loss_of(pod: PodView) -> Loss | None:
    """Returns why the pod can't serve any more; None while its containers may still run or be restarted in it.

    Rules:
    * pods are `restartPolicy: Always`, so a container that ends is restarted in place, which is no loss;
    * a pod is lost when it is being deleted, by whomever, or when the kubelet gave it up (phase Failed; Succeeded at a node's shutdown);
    * a pod whose labels were changed is lost too, and that doesn't count: Services and policies no longer select it;
    * any other loss counts unless the pod says that infrastructure or a scheduler removed it (`_disruption`).
    """
    if not pod.labelled:
        return Loss(Reason.POD_LOST, "its labels were changed", counted=False)
    if pod.deleted_at is None and pod.phase not in {"Failed", "Succeeded"}:
        return None
    since = _end_of(pod)
    if pod.deleted_at is not None:
        since = pod.deleted_at - timedelta(seconds=pod.raw["metadata"].get("deletionGracePeriodSeconds") or 0)
    if disruption := _disruption(pod):
        return replace(disruption, time=since)
    if pod.deleted_at is not None:
        cause = pod.condition("DisruptionTarget")
        return Loss(Reason.POD_LOST, _words(cause) if _holds(cause) else "it was deleted", time=since)
    status = pod.raw["status"]
    last = last_termination(pod.own_statuses)
    parts = [status.get("reason"), status.get("message"), last.text if last else None]
    text = "; ".join(str(part) for part in parts if part)
    return Loss(Reason.POD_LOST, text or f"it ended with phase {pod.phase}", time=since)


def _disruption(pod: PodView) -> Loss | None:
    """Returns the loss of a pod that was removed through no fault of its own; None if nothing says so.

    Rules, by what stands in the pod's status:
    * condition `DisruptionTarget` with any reason but `TerminationByKubelet`: an eviction through the API, a preemption, or a node that is
      gone (Kubernetes, "Pod disruption conditions"; other schedulers have their own reasons);
    * a status reason of `NODE_SHUTDOWN`: a graceful node shutdown. `TerminationByKubelet` alone doesn't count as one, since a pod that
      drives its node out of memory has it too, and is at fault;
    * condition `TerminationTarget`: Kueue deletes the pod (Kueue, pkg/controller/jobs/pod);
    * condition `Ready`, False with the reason `Evict`, in a pod being deleted: Volcano preempts it (Volcano, pkg/scheduler/cache).
    """
    node = f"node {pod.node or '?'}"
    if pod.raw.get("status", {}).get("reason") in NODE_SHUTDOWN:
        return Loss(Reason.NODE_LOST, f"{node} was shut down", counted=False)
    target, by_kueue, ready = (pod.condition(kind) for kind in ("DisruptionTarget", "TerminationTarget", "Ready"))
    if _holds(target) and target["reason"] in _NODE_GONE:
        return Loss(Reason.NODE_LOST, f"{node} is gone or does not respond", counted=False)
    if _holds(target) and target["reason"] != "TerminationByKubelet":
        return Loss(Reason.POD_LOST, _words(target), counted=False)
    if _holds(by_kueue):
        return Loss(Reason.POD_LOST, _words(by_kueue), counted=False)
    if pod.deleted_at is not None and (ready.get("status"), ready.get("reason")) == ("False", "Evict"):
        return Loss(Reason.POD_LOST, _words(ready), counted=False)
    return None


def _holds(condition: Mapping[str, Any]) -> bool:
    return bool(condition.get("reason")) and condition.get("status", "True") == "True"


def _words(condition: Mapping[str, Any]) -> str:
    return f"{condition['reason']}: {condition.get('message', '')}".rstrip(": ")


def _end_of(pod: PodView) -> datetime | None:
    """Returns when the last container of an ended pod ended, of those that failed or were restarted; None if that isn't known."""
    times = [ended.time for ended in terminations(container_statuses(pod.raw)) if ended.time]
    return max(map(moment, times), default=None)
