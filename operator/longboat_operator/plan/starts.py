"""Pods that have a node but whose containers don't start: only Events tell the cause. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from longboat_crds.reasons import Reason
from longboat_operator.model import Target
from longboat_operator.plan.pod_problems import PodProblem
from longboat_operator.reading.times import seconds_until
from longboat_operator.reading.view import JobView, PodView

# Volumes are mounted and the network is set up within seconds; a network volume may take a few more.
PATIENCE_SECONDS = 20.0
LOOK_AGAIN_SECONDS = 30.0

# Reasons of warnings about a pod's volumes (source: Kubernetes, pkg/kubelet/events and the attach/detach controller).
_VOLUME = frozenset({"FailedMount", "FailedAttachVolume", "FailedMapVolume"})
_SANDBOX = frozenset({"FailedCreatePodSandBox", "NetworkNotReady"})


@dataclass(frozen=True, slots=True)
class HeldUp:
    """Says what keeps the containers of the first such pod from starting, as far as it is known, and when to look again."""

    problem: PodProblem | None = None
    look_up: tuple[Target, ...] = ()
    wait: float | None = None


def held_up(view: JobView, now: datetime) -> HeldUp:
    """Looks for pods that wait for their volumes or their network.

    Rule: the kubelet reports (condition PodReadyToStartContainers) that a pod isn't ready to start containers, but not
    why. If it stays so for longer than `PATIENCE_SECONDS` after it got its node, its Events are asked for: those of one pod, the
    first in start order. What is known of them may be a minute old.
    """
    waits: list[float] = []
    for pod in view.all_pods:
        if pod.unwatched:
            continue  # it is being deleted
        since = _waiting_since(pod)
        if since is None:
            continue
        remaining = seconds_until(since, PATIENCE_SECONDS, now)
        if remaining > 0:
            waits.append(remaining)
            continue
        target: Target = ("Event", pod.name)
        if target not in view.observed.looked_up:
            return HeldUp(look_up=(target,))
        return HeldUp(_problem(view, pod), wait=min([LOOK_AGAIN_SECONDS, *waits]))
    return HeldUp(wait=min(waits, default=None))


def says_missing(view: JobView, secret: str | None) -> bool:
    """Whether a pod's volumes can't be mounted because this Secret isn't there."""
    events = (looked_up for (kind, _), looked_up in view.observed.looked_up.items() if kind == "Event" and looked_up)
    return any(f'secret "{secret}" not found' in event["message"] for event in events)


def _waiting_since(pod: PodView) -> str | None:
    if pod.condition("PodReadyToStartContainers").get("status") != "False":
        return None
    scheduled = pod.condition("PodScheduled")
    if pod.deleted_at is not None or pod.phase != "Pending" or scheduled.get("status") != "True":
        return None
    return scheduled.get("lastTransitionTime")


def _problem(view: JobView, pod: PodView) -> PodProblem | None:
    event = view.observed.looked_up["Event", pod.name]
    if event is None or event["reason"] not in _VOLUME | _SANDBOX:
        return None
    reason = Reason.VOLUME_NOT_READY if event["reason"] in _VOLUME else Reason.CONTAINER_NOT_STARTED
    return PodProblem(reason, f"pod {pod.name}: {event['reason']}: {event['message']}")
