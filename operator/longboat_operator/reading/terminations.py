"""Describes how containers ended, in words for people. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

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


def container_statuses(pod: Object) -> list[Mapping[str, Any]]:
    """Returns the statuses of init containers, sidecars among them, then those of the others."""
    status = pod.get("status", {})
    return [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]


def restart_count(pod: Object) -> int:
    """Counts the restarts of all containers of the pod."""
    return sum([int(s.get("restartCount", 0)) for s in container_statuses(pod)])


def last_termination(pod: Object) -> Termination | None:
    """Returns the newest end of a container that failed or was restarted, None if none is known."""
    return next(iter(terminations(pod)), None)


def terminations(pod: Object) -> list[Termination]:
    """Returns the last end of each container that failed or was restarted, newest first."""
    ends: list[tuple[str, str, Mapping[str, Any]]] = []
    for status in container_statuses(pod):
        of_container = []
        for state in (status.get("state") or {}, status.get("lastState") or {}):
            ended = state.get("terminated")
            if ended and (ended.get("exitCode") or int(status.get("restartCount", 0)) > 0):
                of_container.append((ended.get("finishedAt") or "", status["name"], ended))
        ends += sorted(of_container, key=lambda end: end[0])[-1:]
    return [_termination(container, ended) for _, container, ended in sorted(ends, key=lambda e: e[:2], reverse=True)]


def _termination(container: str, ended: Mapping[str, Any]) -> Termination:
    reason = Reason.OUT_OF_MEMORY if ended.get("reason") == "OOMKilled" else Reason.CONTAINER_EXITED
    text = f"container {container} {_how(ended)}{_last_lines(ended.get('message'))}"
    # A usage error of the command line: the image is of an earlier release.
    if ended.get("exitCode") == 2 and "No such option" in (ended.get("message") or ""):
        text += (
            "; the image is too old for this operator: set spec.image of the runtime template to the operator's release, then "
            "suspend the job and resume it with runtimeRef.renewOnResume: true"
        )
    return Termination(container, reason, text, ended.get("finishedAt"))


def _how(ended: Mapping[str, Any]) -> str:
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
