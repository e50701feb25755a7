"""An API server in memory with kubelets and drivers, for a thousand jobs in one process.

Every answer and every event passes through JSON, as over HTTP, and comes after a while. Pods get ready as soon as they are made. A
driver drains the pods that its grant names, and says so.
"""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from collections.abc import AsyncIterator, Callable
from typing import Any

from pydantic_core import from_json

from longboat_operator.kube.client import Page
from longboat_operator.kube.errors import AlreadyExistsError, ConflictError, NotFoundError
from longboat_operator.kube.resources import EVENT, POD, RL_JOB, SECRET, Resource
from longboat_operator.model import FIELD_MANAGER, GRANT_FIELD_MANAGER, Object
from longboat_operator.watch.feed import Feed

ANSWER_SECONDS = 0.005
# Longer than a watch takes on a machine that isn't busy.
EVENT_SECONDS = 0.1
DRAIN_SECONDS = 1.0
DRIVER = "longboat-driver"
STARTED = "2026-01-01T00:00:00Z"
UNWATCHED = (EVENT.kind, SECRET.kind)
Key = tuple[str, str, str]


class ApiDouble:
    """As much of `KubeClient` as writes and look-ups use."""

    def __init__(self) -> None:
        self.feed: Feed | None = None
        self.requests = 0
        # CPU seconds of what an operator doesn't do: writing stored objects as JSON, the drivers' part, and what the benchmark adds itself.
        self.own_seconds = 0.0
        # Events that are still to come, and drains.
        self.pending = 0
        self._version = 0
        self._objects: dict[Key, dict[str, Any]] = {}
        # By job: the status as each manager has applied it.
        self._applied: dict[Key, dict[str, Any]] = {}

    # The operator's requests.

    async def create(self, resource: Resource, body: Object, *, dry_run: bool = False) -> dict[str, Any]:
        """Creates the object, as POST does; a pod runs and is ready at once. Raises AlreadyExistsError if its name is taken."""
        await self._receive_request()
        key = _key(resource, body["metadata"].get("namespace", ""), body["metadata"]["name"])
        if key in self._objects:
            raise AlreadyExistsError(409, "AlreadyExists", f"{key} already exists")
        made = {**body, "metadata": {**body["metadata"], "uid": str(uuid.uuid4()), "creationTimestamp": STARTED}}
        if resource is POD:
            ready = {"type": "Ready", "status": "True", "lastTransitionTime": STARTED}
            made["spec"] = {**made["spec"], "nodeName": "node0"}
            made["status"] = {"phase": "Running", "conditions": [ready]}
        return _copy(made) if dry_run else self._store(key, made)

    async def apply(
        self,
        resource: Resource,
        body: Object,
        *,
        subresource: str | None = None,
        force: bool = True,
        manager: str = FIELD_MANAGER,
    ) -> dict[str, Any]:
        """Applies an object that exists: with `subresource`, this manager's part of the status.

        Otherwise it replaces top-level keys, except `metadata`, whose own keys are replaced one by one.

        Raises ConflictError if a status comes with another version than the stored one.
        """
        await self._receive_request()
        key = _key(resource, body["metadata"]["namespace"], body["metadata"]["name"])
        stored = self._objects[key]
        if subresource is None:
            return self._store(key, {**stored, **body, "metadata": {**stored["metadata"], **body["metadata"]}})
        if body["metadata"]["resourceVersion"] != stored["metadata"]["resourceVersion"]:
            raise ConflictError(409, "Conflict", "the object has been modified")
        return self._apply_status(key, manager, dict(body["status"]))

    async def apply_new(self, resource: Resource, body: Object) -> dict[str, Any]:
        """Creates the object as `create` does: raises AlreadyExistsError where KubeClient raises ConflictError."""
        return await self.create(resource, body)

    async def get(self, resource: Resource, namespace: str, name: str) -> dict[str, Any]:
        """Reads the object, as GET does. Raises NotFoundError if there is none."""
        await self._receive_request()
        stored = self._objects.get(_key(resource, namespace, name))
        if stored is None:
            raise NotFoundError(404, "NotFound", name)
        return _copy(stored)

    async def patch(self, resource: Resource, namespace: str, name: str, body: Object, *_: Any, **__: Any) -> Any:
        """Replaces keys of the first level, where a PATCH would merge what is below them."""
        await self._receive_request()
        key = _key(resource, namespace, name)
        return self._store(key, {**self._objects[key], **body})

    async def delete(self, resource: Resource, namespace: str, name: str, uid: str, grace: int | None = None) -> Any:
        """Deletes the object at once, whatever its uid, where a DELETE may let it linger. Raises NotFoundError if there is none."""
        await self._receive_request()
        gone = self._objects.pop(_key(resource, namespace, name), None)
        if gone is None:
            raise NotFoundError(404, "NotFound", name)
        self._version += 1
        gone = {**gone, "metadata": {**gone["metadata"], "resourceVersion": str(self._version)}}
        self._later(EVENT_SECONDS, self._tell_gone, self._text(gone))
        return {"kind": "Status"}

    async def list_pages(self, resource: Resource, namespace: str, **_: Any) -> AsyncIterator[Page]:
        """Yields one empty page: the operator lists warnings about pods, of which there are none."""
        await self._receive_request()
        yield Page([], "1")

    # Others.

    def submit(self, body: Object) -> None:
        """Creates a job or a runtime template, as a user does."""
        metadata = {**body["metadata"], "uid": str(uuid.uuid4()), "generation": 1}
        key = (body["kind"], metadata.get("namespace", ""), metadata["name"])
        self._store(key, {**body, "metadata": metadata})

    def status(self, namespace: str, name: str) -> dict[str, Any]:
        """Reads a job's status; empty if it has none yet."""
        status: dict[str, Any] = self._objects[(RL_JOB.kind, namespace, name)].get("status") or {}
        return status

    def drive(self, namespace: str, name: str, **fields: Any) -> None:
        """Applies these fields of the driver's part of the status; its others stay."""
        key = (RL_JOB.kind, namespace, name)
        began = time.process_time()
        before = self.own_seconds
        self._apply_status(key, DRIVER, {**self._applied.get(key, {}).get(DRIVER, {}), **fields})
        self.own_seconds = before + time.process_time() - began

    def _apply_status(self, key: Key, manager: str, status: dict[str, Any]) -> dict[str, Any]:
        parts = self._applied.setdefault(key, {})
        parts[manager] = status
        merged = {**parts.get(DRIVER, {}), **parts.get(FIELD_MANAGER, {})}
        grant = parts.get(GRANT_FIELD_MANAGER, {}).get("allocation", {})
        if allocation := {**merged.get("allocation", {}), **grant}:
            merged["allocation"] = allocation
        written = self._store(key, {**self._objects[key], "status": merged})
        leaving = (grant.get("grant", {}).get("rollout") or {}).get("leaving")
        if manager == GRANT_FIELD_MANAGER and leaving:
            names = [each["pod"] for each in leaving]
            self._later(DRAIN_SECONDS, self._drain, key, names)
        return written

    def _drain(self, key: Key, names: list[str]) -> None:
        demand = self._applied[key][DRIVER]["demand"]
        if set(names) - set(demand["rollout"].get("drained", ())):
            self.drive(key[1], key[2], demand={**demand, "rollout": {**demand["rollout"], "drained": names}})

    async def _receive_request(self) -> None:
        self.requests += 1
        await asyncio.sleep(ANSWER_SECONDS)

    def _store(self, key: Key, obj: dict[str, Any]) -> dict[str, Any]:
        self._version += 1
        obj = {**obj, "metadata": {**obj["metadata"], "resourceVersion": str(self._version)}}
        self._objects[key] = obj
        text = self._text(obj)
        if key[0] not in UNWATCHED:
            self._later(EVENT_SECONDS, self._tell, text)
        answer: dict[str, Any] = from_json(text)
        return answer

    def _text(self, obj: Object) -> str:
        """Serialises what the API server would; that isn't the operator's time."""
        began = time.process_time()
        text = json.dumps(obj)
        self.own_seconds += time.process_time() - began
        return text

    def _later(self, seconds: float, act: Callable[..., None], *arguments: Any) -> None:
        self.pending += 1
        asyncio.get_running_loop().call_later(seconds, self._act, act, *arguments)

    def _act(self, act: Callable[..., None], *arguments: Any) -> None:
        self.pending -= 1
        act(*arguments)

    def _tell(self, text: str) -> None:
        if self.feed is not None:
            self.feed.put(from_json(text))

    def _tell_gone(self, text: str) -> None:
        if self.feed is not None:
            self.feed.remove(from_json(text))


def _key(resource: Resource, namespace: str, name: str) -> Key:
    return resource.kind, namespace, name


def _copy(obj: dict[str, Any]) -> dict[str, Any]:
    copied: dict[str, Any] = json.loads(json.dumps(obj))
    return copied
