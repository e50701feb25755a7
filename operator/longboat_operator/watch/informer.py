"""List, then watch, forever: one kind in one namespace or in all."""

from __future__ import annotations

import asyncio
import random

import structlog

from longboat_operator.kube.client import KubeClient
from longboat_operator.kube.errors import GoneError, KubeError, QuietError
from longboat_operator.kube.resources import Resource
from longboat_operator.metrics import RELISTS
from longboat_operator.watch.cache import ObjectKey, Source, key_of
from longboat_operator.watch.feed import Feed

# A server that ends every watch at once must not be asked without pause.
_PAUSE_SECONDS = 0.2
_FIRST_WAIT_SECONDS = 0.5
_LONGEST_WAIT_SECONDS = 30.0

log = structlog.get_logger(__name__)


class RestoredError(Exception):
    """The API server's data were restored from a backup: what was read from it since has never happened. A new process reads all anew."""


class Informer:
    """Keeps a feed up to date. A broken watch resumes where it was; only a version that the server doesn't know makes it list again."""

    def __init__(
        self,
        client: KubeClient,
        resource: Resource,
        namespace: str | None,
        selector: str,
        feed: Feed,
        lists: asyncio.Semaphore,
    ) -> None:
        """`lists` is held while it lists; informers that share one list no more sources at once than it admits."""
        self._client = client
        self._resource = resource
        self._selector = selector
        self._feed = feed
        self._lists = lists
        self._version: str | None = None
        self._newest = 0
        self.source = Source(resource.kind, namespace)

    async def run(self) -> None:
        """Lists and watches forever.

        Failures of requests are logged and followed by a wait, which grows up to a limit. A quiet watch isn't such a failure.

        Raises:
            RestoredError: versions went back.
        """
        failures = 0
        while True:
            try:
                if self._version is None:
                    async with self._lists:
                        await self._list()
                await self._watch()
                failures = 0
                await asyncio.sleep(_PAUSE_SECONDS)
            except QuietError:
                failures = 0
                log.debug("watch quiet, reconnecting", kind=self._resource.kind)
            except KubeError as error:
                if isinstance(error, GoneError):
                    self._version = None
                failures += 1
                log.warning("watch failed", kind=self._resource.kind, error=str(error), failures=failures)
                wait = min(_FIRST_WAIT_SECONDS * 2 ** (failures - 1), _LONGEST_WAIT_SECONDS)
                await asyncio.sleep(wait * random.uniform(0.5, 1.0))

    async def _list(self) -> None:
        RELISTS.labels(self._resource.kind).inc()
        present: set[ObjectKey] = set()
        version = "0"
        async for page in self._client.list_pages(self._resource, self.source.namespace, self._selector):
            for item in page.items:
                # Items of a list carry no kind of their own.
                obj = {"apiVersion": self._resource.api_version, "kind": self._resource.kind, **item}
                present.add(key_of(obj))
                self._feed.put(obj)
            version = page.resource_version
            await asyncio.sleep(0)
        if int(version) < self._newest:
            raise RestoredError(
                f"the API server's versions of {self._resource.plural} went back from {self._newest} to {version}"
            )
        self._feed.listed(self.source, present, int(version))
        self._version = version

    async def _watch(self) -> None:
        assert self._version is not None
        watch = self._client.watch(self._resource, self.source.namespace, self._selector, self._version)
        async with watch as events:
            self._newest = int(self._version)
            # A server that continues from a version has sent everything before it; for a kind without events it may send no more.
            self._feed.heard(self.source, int(self._version))
            async for event in events:
                if event.type == "DELETED":
                    self._feed.remove(event.object)
                elif event.type != "BOOKMARK":
                    self._feed.put(event.object)
                self._version = event.object["metadata"]["resourceVersion"]
                self._newest = int(self._version)
                self._feed.heard(self.source, self._newest)
