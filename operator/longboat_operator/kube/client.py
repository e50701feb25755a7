"""Talks to the API server in Kubernetes' verbs."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal

from longboat_operator.kube.errors import NotFoundError, error_from_status
from longboat_operator.kube.resources import Resource
from longboat_operator.kube.transport import LIST_TIMEOUT_SECONDS, Request, Transport
from longboat_operator.model import FIELD_MANAGER, Object

PAGE_SIZE = 500

_APPLY = "application/apply-patch+yaml"
_METADATA_LIST = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"

PatchType = Literal["application/merge-patch+json", "application/strategic-merge-patch+json"]
MERGE_PATCH: PatchType = "application/merge-patch+json"
STRATEGIC_MERGE_PATCH: PatchType = "application/strategic-merge-patch+json"


@dataclass(frozen=True, slots=True)
class Page:
    """A part of a list; all parts of one list show the same `resource_version`."""

    items: list[dict[str, Any]]
    resource_version: str


@dataclass(frozen=True, slots=True)
class WatchEvent:
    """ADDED, MODIFIED, DELETED or BOOKMARK."""

    type: str
    object: dict[str, Any]


class KubeClient:
    """Reads, and writes that pass `gate` first: it raises when this process may not write (any more).

    With `in_flight`, no more requests than that are under way at once; others wait their turn. Watches don't count.

    Every method raises `ApiError` when the server says no and `TransportError` when it says nothing in time.
    """

    def __init__(self, transport: Transport, gate: Callable[[], None], in_flight: int | None = None) -> None:
        self._transport = transport
        self._gate = gate
        self._turn: AbstractAsyncContextManager[object] = asyncio.Semaphore(in_flight) if in_flight else nullcontext()

    async def get(self, resource: Resource, namespace: str | None, name: str) -> dict[str, Any]:
        """Reads one object. NotFoundError: there is none."""
        return await self._send(Request("GET", resource.path(namespace, name), "get", resource.plural))

    async def served(self, group: str, version: str) -> set[str]:
        """Returns the names of the resources that the server serves in this version of the group; empty if it doesn't serve that version.

        Subresources are included (`rljobs/status`).
        """
        request = Request("GET", f"/apis/{group}/{version}", "get", "apis")
        try:
            answer = await self._send(request)
        except NotFoundError:
            return set()
        return {resource["name"] for resource in answer["resources"]}

    async def version(self, resource: Resource, namespace: str | None) -> int:
        """Returns the newest resourceVersion that the server has given to anything."""
        request = Request(
            "GET", resource.path(namespace), "list", resource.plural, {"limit": "1"}, accept=_METADATA_LIST
        )
        answer = await self._send(request)
        return int(answer["metadata"]["resourceVersion"])

    async def list_pages(
        self,
        resource: Resource,
        namespace: str | None,
        selector: str = "",
        *,
        fields: str = "",
        metadata_only: bool = False,
    ) -> AsyncIterator[Page]:
        """Yields all objects that match the label selector and the field selector (default: `resource.fields`), in pages.

        Raises:
            GoneError: the list took too long; start again.
        """
        query = {"limit": str(PAGE_SIZE)}
        if selector:
            query["labelSelector"] = selector
        if fields or resource.fields:
            query["fieldSelector"] = fields or resource.fields
        accept = _METADATA_LIST if metadata_only else "application/json"
        while True:
            request = Request(
                "GET",
                resource.path(namespace),
                "list",
                resource.plural,
                dict(query),
                accept=accept,
                timeout_seconds=LIST_TIMEOUT_SECONDS,
            )
            answer = await self._send(request)
            metadata = answer["metadata"]
            yield Page(answer["items"] or [], metadata["resourceVersion"])
            if not metadata.get("continue"):
                return
            query["continue"] = metadata["continue"]

    @asynccontextmanager
    async def watch(
        self, resource: Resource, namespace: str | None, selector: str, resource_version: str
    ) -> AsyncIterator[AsyncGenerator[WatchEvent, None]]:
        """Opens a stream of the changes after `resource_version`, with bookmarks, until the server ends it after some minutes.

        Entered once the server has opened the stream.

        Raises:
            GoneError: that version is compacted away.
            QuietError: nothing came for so long that the connection may be dead.
        """
        query = {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": resource_version,
            "timeoutSeconds": str(random.randint(240, 480)),
        }
        if selector:
            query["labelSelector"] = selector
        if resource.fields:
            query["fieldSelector"] = resource.fields
        request = Request("GET", resource.path(namespace), "watch", resource.plural, query)
        async with self._transport.stream(request) as lines, aclosing(_events(lines)) as events:
            yield events

    async def create(self, resource: Resource, body: Object, *, dry_run: bool = False) -> dict[str, Any]:
        """Creates the object (POST), or with `dry_run` asks whether it would be created. AlreadyExistsError: the name is taken."""
        query = {"fieldManager": FIELD_MANAGER} | ({"dryRun": "All"} if dry_run else {})
        namespace = body["metadata"].get("namespace")
        return await self._write(Request("POST", resource.path(namespace), "create", resource.plural, query, body))

    async def apply(
        self,
        resource: Resource,
        body: Object,
        *,
        subresource: str | None = None,
        force: bool = True,
        manager: str = FIELD_MANAGER,
    ) -> dict[str, Any]:
        """Applies the object, server-side, as one of our field managers.

        Raises:
            ConflictError: another manager's field (unless forced), a stale `metadata.resourceVersion`, or a
                `metadata.uid` that no object of the name has any more.
            InvalidError: the object of the name has another uid than `metadata.uid`.
        """
        metadata = body["metadata"]
        path = resource.path(metadata.get("namespace"), metadata["name"], subresource)
        query = {"fieldManager": manager, "force": "true" if force else "false"}
        return await self._write(
            Request("PATCH", path, "apply", _counted(resource, subresource), query, body, content_type=_APPLY)
        )

    async def apply_new(self, resource: Resource, body: Object) -> dict[str, Any]:
        """Creates the object by a server-side apply, which never changes an existing one (ConflictError).

        A POST would do the same, but its fields would stay when a later apply leaves them out. So the apply names a
        version that no object has: the server compares it only if the object exists.
        """
        metadata = {**body["metadata"], "resourceVersion": "1"}
        return await self.apply(resource, {**body, "metadata": metadata}, force=False)

    async def patch(
        self,
        resource: Resource,
        namespace: str,
        name: str,
        body: Mapping[str, Any],
        patch_type: PatchType,
        subresource: str | None = None,
    ) -> dict[str, Any]:
        """Sends a merge patch or a strategic merge patch."""
        path = resource.path(namespace, name, subresource)
        query = {"fieldManager": FIELD_MANAGER}
        return await self._write(
            Request("PATCH", path, "patch", _counted(resource, subresource), query, body, content_type=patch_type)
        )

    async def replace(self, resource: Resource, body: Object) -> dict[str, Any]:
        """Replaces the object (PUT). ConflictError: `metadata.resourceVersion` is stale."""
        metadata = body["metadata"]
        path = resource.path(metadata.get("namespace"), metadata["name"])
        query = {"fieldManager": FIELD_MANAGER}
        return await self._write(Request("PUT", path, "update", resource.plural, query, body))

    async def delete(
        self, resource: Resource, namespace: str, name: str, uid: str | None, grace_seconds: int | None = None
    ) -> dict[str, Any]:
        """Deletes the object, and its dependents in the background.

        Raises:
            ConflictError: `uid` is given, and the object has another one.
            NotFoundError: there is no such object.
        """
        options: dict[str, Any] = {"propagationPolicy": "Background"}
        if uid is not None:
            options["preconditions"] = {"uid": uid}
        if grace_seconds is not None:
            options["gracePeriodSeconds"] = grace_seconds
        return await self._write(
            Request("DELETE", resource.path(namespace, name), "delete", resource.plural, body=options)
        )

    async def _write(self, request: Request) -> dict[str, Any]:
        return await self._send(request, self._gate)

    async def _send(self, request: Request, gate: Callable[[], None] = lambda: None) -> dict[str, Any]:
        async with self._turn:
            gate()  # not before: the right to write may end while the request waits
            return await self._transport.send(request)


async def _events(lines: AsyncIterator[dict[str, Any]]) -> AsyncGenerator[WatchEvent, None]:
    async for line in lines:
        if line["type"] == "ERROR":
            raise error_from_status(line["object"])
        yield WatchEvent(line["type"], line["object"])


def _counted(resource: Resource, subresource: str | None) -> str:
    return f"{resource.plural}/{subresource}" if subresource else resource.plural
