"""Warnings in Events about pods whose containers don't start, listed at most once a minute in each namespace."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from longboat_operator.kube.client import KubeClient
from longboat_operator.kube.errors import KubeError, is_rejection
from longboat_operator.kube.resources import EVENT
from longboat_operator.model import Object

KEPT_SECONDS = 60.0
# Pods of a namespace whose newest warnings are kept: those that were warned about last.
MOST_PODS = 4096
_FIELDS = "type=Warning,involvedObject.kind=Pod"


@dataclass(frozen=True, slots=True)
class _Listing:
    begun: float
    newest: asyncio.Task[Mapping[str, Object]]


class PodWarnings:
    """The newest warning about each pod, by namespace. One list serves all that ask within a minute of its start."""

    def __init__(self, client: KubeClient, clock: Callable[[], float]) -> None:
        self._client = client
        self._clock = clock
        self._listings: dict[str, _Listing] = {}

    async def about(self, namespace: str, uid: str) -> Object | None:
        """Returns the newest warning about the pod, reduced to its reason and message; None if there was none when they were listed.

        Raises:
            KubeError: the list failed. A refused one isn't repeated within the minute either.
        """
        now = self._clock()
        self._listings = {name: each for name, each in self._listings.items() if now - each.begun < KEPT_SECONDS}
        listing = self._listings.get(namespace)
        if listing is None:
            listing = _Listing(now, asyncio.create_task(self._list(namespace), name=f"warnings of {namespace}"))
            self._listings[namespace] = listing
        try:
            return (await asyncio.shield(listing.newest)).get(uid)
        except KubeError as error:
            if not is_rejection(error) and self._listings.get(namespace) is listing:
                del self._listings[namespace]
            raise

    async def _list(self, namespace: str) -> Mapping[str, Object]:
        newest: dict[str, dict[str, Any]] = {}
        async for page in self._client.list_pages(EVENT, namespace, fields=_FIELDS):
            for event in page.items:
                uid = event["involvedObject"].get("uid", "")
                if uid not in newest or _time(event) >= newest[uid]["time"]:
                    newest[uid] = {
                        "kind": EVENT.kind,
                        "metadata": {"name": event["metadata"]["name"]},
                        "reason": event.get("reason") or "",
                        "message": event.get("message") or "",
                        "time": _time(event),
                    }
            if len(newest) > MOST_PODS:
                newest = dict(heapq.nlargest(MOST_PODS, newest.items(), key=lambda item: item[1]["time"]))
        return newest


def _time(event: Mapping[str, Any]) -> str:
    """Returns when the event last happened, else when it was stored, as RFC 3339 text, which compares as time to the second."""
    series = event.get("series") or {}
    time = series.get("lastObservedTime") or event.get("lastTimestamp") or event.get("eventTime")
    return str(time or event["metadata"].get("creationTimestamp") or "")
