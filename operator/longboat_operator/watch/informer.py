"""List, then watch, forever: one kind in one namespace or in all."""

from __future__ import annotations

import asyncio
import random

import structlog

from longboat_operator.kube.client import KubeClient
from longboat_operator.kube.errors import ForbiddenError, GoneError, KubeError, QuietError, is_rejection
from longboat_operator.kube.resources import Resource
from longboat_operator.metrics import RELISTS
from longboat_operator.schedule import backoff_seconds
from longboat_operator.watch.cache import ObjectKey, Source, key_of, version_of
from longboat_operator.watch.feed import Feed, RestoredError

# A server that ends every watch at once must not be asked without pause.
_PAUSE_SECONDS = 0.2
_LONGEST_WAIT_SECONDS = 30.0

log = structlog.get_logger(__name__)


def wait_seconds(failures: int) -> float:
    """Returns how long to wait after so many failures of a source in a row (from 1): doubled each time, up to half a minute, and random."""
    return min(backoff_seconds(failures), _LONGEST_WAIT_SECONDS) * random.uniform(0.5, 1.0)


class Informer:
    """Keeps a feed up to date. A broken watch resumes where it was; it lists again if the server refuses it or doesn't know its version."""

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
        self._newest = self._failures = self._refusals = 0
        self.source = Source(resource.kind, namespace)

    async def run(self) -> None:
        """Lists and watches forever.

        Failures of requests are logged and followed by a wait, which grows up to a limit. A quiet watch isn't such a failure.

        Raises:
            RestoredError: see there.
        """
        while True:
            try:
                if self._version is None:
                    async with self._lists:
                        await self._list()
                elif self._failures:
                    await self._check_history()
                await self._watch()
                self._failures = self._refusals = 0
                await asyncio.sleep(_PAUSE_SECONDS)
            except GoneError as error:
                self._version = None
                self._refusals += 1
                await self._pause(error, self._refusals)
            except QuietError:
                self._failures = 1  # it may have been restored meanwhile
                log.debug("watch quiet, reconnecting", kind=self._resource.kind)
            except KubeError as error:
                if is_rejection(error) or self._version is None:
                    self._version = None
                    self._feed.refused(self.source, str(error), forbidden=isinstance(error, ForbiddenError))
                self._failures += 1
                await self._pause(error, self._failures)

    async def _pause(self, error: KubeError, failures: int) -> None:
        log.warning("watch failed", source=str(self.source), error=str(error), failures=failures)
        await asyncio.sleep(wait_seconds(failures))

    async def _check_history(self) -> None:
        """Raises RestoredError if the server's newest version is older than one that was seen: it would take a watch from there without a word.

        Asked after a broken or silent connection, since a server is restarted to be restored.
        """
        self._check_version(await self._client.version(self._resource, self.source.namespace))

    def _check_version(self, version: int) -> None:
        if version < self._newest:
            raise RestoredError(f"the API server's versions went back from {self._newest} to {version}")

    async def _list(self) -> None:
        RELISTS.labels(self._resource.kind).inc()
        versions: dict[ObjectKey, int] = {}
        version = "0"
        async for page in self._client.list_pages(self._resource, self.source.namespace, self._selector):
            for item in page.items:
                # Items of a list carry no kind of their own.
                obj = {"apiVersion": self._resource.api_version, "kind": self._resource.kind, **item}
                versions[key_of(obj)] = version_of(obj)
                self._feed.put(obj)
            version = page.resource_version
            await asyncio.sleep(0)
        self._check_version(int(version))
        self._feed.listed(self.source, versions, int(version))
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
                self._failures = self._refusals = 0
                self._feed.heard(self.source, self._newest)
