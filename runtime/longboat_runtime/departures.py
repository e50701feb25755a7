"""Rollout and environment pods that have to go: their agents ask, and the driver says when nothing runs there any more. Kept by the Ray head.

A pod whose container is told to end (`kubectl delete`, an eviction, a node that is drained, a smaller `rollout.replicas`) has its
terminationGracePeriodSeconds for that. A client is Ray's `GcsClient`; all calls block, and raise what Ray raises.
"""

from __future__ import annotations

from typing import Any

_NAMESPACE = b"longboat-departures"
_ASKED, _FREE = b"asked", b"free"
_SECONDS = 5.0


def ask(client: Any, pod: str) -> bool:
    """Asks to let the pod go, unless it has been asked; returns whether it is free to go."""
    key = pod.encode()
    if (value := client.internal_kv_get(key, _NAMESPACE, timeout=_SECONDS)) is None:
        client.internal_kv_put(key, _ASKED, True, _NAMESPACE, timeout=_SECONDS)
    return bool(value == _FREE)


def asking(client: Any) -> list[str]:
    """Returns the names of the pods that have asked to go, also of those that are free or gone: names never come again."""
    return [key.decode() for key in client.internal_kv_keys(b"", _NAMESPACE, timeout=_SECONDS)]


def let_go(client: Any, pod: str) -> None:
    """Says that nothing runs in the pod any more, and nothing will."""
    client.internal_kv_put(pod.encode(), _FREE, True, _NAMESPACE, timeout=_SECONDS)
