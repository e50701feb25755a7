"""Tells whether a pod is ready, and in words for people how its containers ended. Pure.

A role's *own* containers are those that Longboat creates. All others are *foreign*: the cluster injects them, or the runtime template adds
them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from longboat_crds.base import Role
from longboat_crds.incarnations import UNANSWERED, UNANSWERED_EXIT_CODE
from longboat_crds.reasons import Reason
from longboat_operator.model import Object

# Signals that end processes (signal(7), Linux). A shell and the kubelet report 128 + number as the exit code.
SIGNALS = {
    1: "SIGHUP", 2: "SIGINT", 3: "SIGQUIT", 4: "SIGILL", 6: "SIGABRT", 7: "SIGBUS", 8: "SIGFPE", 9: "SIGKILL",
    11: "SIGSEGV", 13: "SIGPIPE", 15: "SIGTERM", 24: "SIGXCPU", 31: "SIGSYS",
}  # fmt: skip
LAST_LINES = 5
LAST_CHARACTERS = 600


@dataclass(frozen=True, slots=True)
class Termination:
    """One end of a container. `time` is the API server's (`pod_times`), None when it isn't known."""

    container: str
    reason: Reason
    text: str
    time: str | None = None

    @property
    def counted(self) -> bool:
        """Whether it counts towards the role's limit: not if the driver ended because the API server didn't answer."""
        return self.reason is not Reason.DRIVER_SILENT


def container_statuses(pod: Object) -> list[Mapping[str, Any]]:
    """Returns the statuses of init containers, sidecars among them, then those of the others."""
    status = pod.get("status", {})
    return [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]


def is_ready(pod: Object, own: Collection[str]) -> bool:
    """Whether the pod is ready, judged by the containers that `own` names.

    Rule: its condition Ready is True, or is False only because a foreign container isn't ready. The kubelet gives the reason
    ContainersNotReady as soon as any container isn't ready (pkg/kubelet/status/generate.go).
    """
    conditions = {condition["type"]: condition for condition in pod.get("status", {}).get("conditions") or ()}
    ready: Mapping[str, Any] = conditions.get("Ready", {})
    if ready.get("status") == "True":
        return True
    if ready.get("reason") != "ContainersNotReady":
        return False
    spec = pod.get("spec", {})
    wanted = {each["name"] for kind in ("initContainers", "containers") for each in spec.get(kind) or ()} & {*own}
    return bool(wanted) and wanted <= {status["name"] for status in container_statuses(pod) if status.get("ready")}


def last_termination(statuses: Iterable[Mapping[str, Any]]) -> Termination | None:
    """Returns the newest end of a container that failed or was restarted, None if none is known."""
    return next(iter(terminations(statuses)), None)


def terminations(statuses: Iterable[Mapping[str, Any]]) -> list[Termination]:
    """Returns the last end of each container that failed or was restarted, newest first."""
    ends: list[tuple[str, str, Mapping[str, Any]]] = []
    for status in statuses:
        of_container = []
        for state in (status.get("state") or {}, status.get("lastState") or {}):
            ended = state.get("terminated")
            if ended and (ended.get("exitCode") or int(status.get("restartCount", 0)) > 0):
                of_container.append((ended.get("finishedAt") or "", status["name"], ended))
        ends += sorted(of_container, key=lambda end: end[0])[-1:]
    return [_termination(container, ended) for _, container, ended in sorted(ends, key=lambda e: e[:2], reverse=True)]


def _termination(container: str, ended: Mapping[str, Any]) -> Termination:
    if container == Role.DRIVER and ended.get("exitCode") == UNANSWERED_EXIT_CODE:
        _, _, cause = (ended.get("message") or "").strip().rpartition(UNANSWERED)
        return Termination(
            container, Reason.DRIVER_SILENT, f"the driver had {UNANSWERED}{cause}", ended.get("finishedAt")
        )
    reason = Reason.OUT_OF_MEMORY if ended.get("reason") == "OOMKilled" else Reason.CONTAINER_EXITED
    text = f"container {container} {how_it_ended(ended)}{_last_lines(ended.get('message'))}"
    # A usage error of the command line: the image is of an earlier release.
    if ended.get("exitCode") == 2 and "No such option" in (ended.get("message") or ""):
        text += (
            "; the image is too old for this operator: set spec.image of the runtime template to the operator's release, then "
            "suspend the job and resume it with runtimeRef.renewOnResume: true"
        )
    return Termination(container, reason, text, ended.get("finishedAt"))


def how_it_ended(ended: Mapping[str, Any]) -> str:
    """Returns how a container ended, without its last words."""
    code = int(ended.get("exitCode") or 0)
    number = int(ended.get("signal") or 0) or (code - 128 if code > 128 else 0)
    signal = f" ({SIGNALS.get(number, f'signal {number}')})" if number else ""
    if ended.get("reason") == "OOMKilled":
        return f"went over its memory limit: OOMKilled, exit code {code}{signal}"
    return f"ended with exit code {code}{signal}"


def _last_lines(message: str | None) -> str:
    lines = (message or "").strip().splitlines()[-LAST_LINES:]
    text = "\n".join(lines)[-LAST_CHARACTERS:]
    return f"; last lines: {text}" if text else ""
