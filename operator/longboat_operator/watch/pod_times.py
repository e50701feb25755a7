"""Times in the status of a pod. Kubelets and the scheduler wrote them, whose clocks may be wrong by any amount. Pure.

In what is kept of a pod the API server's time replaces them, so that all rules compare times of one clock. What a status says of the
present counts from when this process first saw it. How long ago a container ended is told from when the status was written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from typing import Any

from longboat_operator.model import Object
from longboat_operator.reading.times import fine_stamp, moment

_TIMES = frozenset({"lastTransitionTime", "startedAt", "finishedAt"})
_CONTAINERS = ("initContainerStatuses", "containerStatuses")
_STATES = ("state", "lastState")
# The conditions whose times the rules use; memory matters with 10^5 pods, so those of others are dropped.
_DATED = frozenset({"Ready", "PodScheduled", "PodResizePending", "PodResizeInProgress"})
# The only condition about readiness that nobody but the kubelet writes.
_KUBELET_CONDITION = "ContainersReady"

Translate = Callable[[str, str, bool], str]


def with_server_times(pod: Object, cached: Object | None, now: datetime) -> dict[str, Any]:
    """Returns a pod as the API server gave it at `now`, with the times in its status translated; `cached` is what is kept of it so far.

    `serverTimes` says what each time was translated to, by its condition or container, so that no time is translated twice.

    Rules:
    * a condition changed, and a container that runs was started, when this was first seen, which is `now` if it is new;
    * a container ended as long before the status was last written as its node's times say. They are compared with the newest
      one of the same node only, so that what ended together, or in a certain order, still did. The API server dates the write.
    """
    status = pod.get("status") or {}
    translated: Mapping[str, str] = {}
    if cached is not None and cached["metadata"].get("uid") == pod["metadata"].get("uid"):
        translated = cached.get("serverTimes") or {}
    times: dict[str, str] = {}
    first_seen = fine_stamp(now)

    def translate(owner: str, text: str, ended: bool) -> str:
        key = f"{owner} {'ended' if ended else 'since'} {text}"
        if key not in times:
            times[key] = translated.get(key) or (fine_stamp(_end(text, pod, now)) if ended else first_seen)
        return times[key]

    changed: dict[str, Any] = {}
    if conditions := status.get("conditions"):
        changed["conditions"] = [_condition(each, translate) for each in conditions]
    for name in _CONTAINERS:
        if statuses := status.get(name):
            changed[name] = [_container(each, translate) for each in statuses]
    return {**pod, "status": {**status, **changed}, "serverTimes": times}


def _condition(condition: Mapping[str, Any], translate: Translate) -> dict[str, Any]:
    if condition["type"] in _DATED:
        return _translated(condition, condition["type"], translate)
    return {key: value for key, value in condition.items() if key not in _TIMES}


def _container(status: Mapping[str, Any], translate: Translate) -> dict[str, Any]:
    states = {
        state: {
            kind: _translated(each or {}, status["name"], translate, ended=kind == "terminated")
            for kind, each in status[state].items()
        }
        for state in _STATES
        if status.get(state)
    }
    return {**status, **states}


def _translated(fields: Mapping[str, Any], owner: str, translate: Translate, *, ended: bool = False) -> dict[str, Any]:
    return {key: translate(owner, value, ended) if key in _TIMES and value else value for key, value in fields.items()}


def _end(text: str, pod: Object, now: datetime) -> datetime:
    """Returns when a container ended by the API server's time: the newest time of its node is as old as the last write of the status."""
    writes = [
        moment(entry["time"])
        for entry in pod["metadata"].get("managedFields") or ()
        if entry.get("subresource") == "status" and entry.get("time")
    ]
    written = min(max(writes, default=now), now)
    try:
        return written - (max(map(moment, _node_times(pod["status"]))) - moment(text))
    except OverflowError:  # the times lie thousands of years apart
        return written


def _node_times(status: Mapping[str, Any]) -> Iterator[str]:
    details: list[Mapping[str, Any]] = [
        each for each in status.get("conditions") or () if each["type"] == _KUBELET_CONDITION
    ]
    for name in _CONTAINERS:
        for container in status.get(name) or ():
            for state in _STATES:
                details += [each or {} for each in (container.get(state) or {}).values()]
    for fields in details:
        yield from (value for key, value in fields.items() if key in _TIMES and value)
