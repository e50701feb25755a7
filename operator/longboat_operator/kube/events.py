"""Events on jobs: what a person would want to be told. The same words again are counted in one Event."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from typing import Any

from longboat_operator.kube.client import MERGE_PATCH, KubeClient
from longboat_operator.kube.clock import ServerClock
from longboat_operator.kube.errors import AlreadyExistsError, NotFoundError
from longboat_operator.kube.resources import EVENT
from longboat_operator.model import FIELD_MANAGER, EmitEvent, Object
from longboat_operator.reading.times import stamp

_REMEMBERED = 4096
_LONGEST_MESSAGE = 1024


class EventRecorder:
    """Writes Events. Their names derive from what they say, so counting continues after a restart."""

    def __init__(self, client: KubeClient, server_clock: ServerClock, instance: str) -> None:
        """`instance` names this process (reportingInstance)."""
        self._client = client
        self._server_clock = server_clock
        self._instance = instance
        self._counts: OrderedDict[tuple[str, str], int] = OrderedDict()

    async def record(self, job: Object, event: EmitEvent) -> None:
        """Writes or counts up. Raises what the client raises."""
        body = self._body(job, event)
        metadata = body["metadata"]
        key = (metadata["namespace"], metadata["name"])
        if key not in self._counts:
            try:
                await self._client.create(EVENT, body)
            except AlreadyExistsError:
                stored = await self._client.get(EVENT, *key)
                self._counts[key] = int(stored.get("count") or 1)
            else:
                self._remember(key, 1)
                return
        try:
            count = self._counts[key] + 1
            patch = {"count": count, "lastTimestamp": body["lastTimestamp"]}
            await self._client.patch(EVENT, *key, patch, MERGE_PATCH)
        except NotFoundError:  # Events live an hour
            count = 1
            await self._client.create(EVENT, body)
        self._remember(key, count)

    def _remember(self, key: tuple[str, str], count: int) -> None:
        self._counts[key] = count
        self._counts.move_to_end(key)
        if len(self._counts) > _REMEMBERED:
            self._counts.popitem(last=False)

    def _body(self, job: Object, event: EmitEvent) -> dict[str, Any]:
        metadata = job["metadata"]
        now = stamp(self._server_clock.now())
        words = "\n".join((metadata["uid"], event.type, event.reason, event.message))
        digest = hashlib.sha256(words.encode()).hexdigest()[:16]
        return {
            "apiVersion": EVENT.api_version,
            "kind": EVENT.kind,
            "metadata": {"namespace": metadata["namespace"], "name": f"{metadata['name']}.{digest}"},
            "involvedObject": {
                "apiVersion": job["apiVersion"],
                "kind": job["kind"],
                "namespace": metadata["namespace"],
                "name": metadata["name"],
                "uid": metadata["uid"],
            },
            "type": event.type,
            "reason": event.reason,
            "message": event.message[:_LONGEST_MESSAGE],
            "count": 1,
            "firstTimestamp": now,
            "lastTimestamp": now,
            "source": {"component": FIELD_MANAGER},
            "reportingComponent": FIELD_MANAGER,
            "reportingInstance": self._instance,
        }
