"""A metadata-only re-list every few minutes: deletions that a watch missed are repaired, a dead watch is detected."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from dataclasses import dataclass

import structlog

from longboat_operator.kube.client import KubeClient
from longboat_operator.kube.errors import ForbiddenError, KubeError
from longboat_operator.kube.resources import Resource
from longboat_operator.metrics import REPAIRS
from longboat_operator.watch.cache import Cache, ObjectKey, Source
from longboat_operator.watch.feed import Feed
from longboat_operator.watch.informer import wait_seconds

REPAIR_SECONDS = 300.0
# How often `confirm` checks whether what the list shows has come.
_OWED_SECONDS = 0.05
# How long it waits for that. A watch that has to list thousands of objects first may take longer.
LIST_AGAIN_SECONDS = 10.0

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Difference:
    """Holds how a cache differs from a list."""

    vanished: frozenset[ObjectKey]
    newer: Mapping[ObjectKey, int]


def compare(cached: Mapping[ObjectKey, int], listed: Mapping[ObjectKey, int], list_version: int) -> Difference:
    """Compares the cache's versions with a list taken as of `list_version`. Pure.

    Vanished is what is held, not listed and no newer than the list, whatever the watch said: kopf drops deletions that
    fall into a re-list. Newer is what is listed in a newer version than held, or not held.
    """
    return Difference(
        frozenset(key for key, version in cached.items() if key not in listed and version <= list_version),
        {key: version for key, version in listed.items() if version > cached.get(key, -1)},
    )


class Repair:
    """Re-lists some kinds in turn, spread over the period."""

    def __init__(
        self,
        client: KubeClient,
        cache: Cache,
        feed: Feed,
        sources: list[tuple[Resource, str | None, str]],
        lists: asyncio.Semaphore,
        period_seconds: float = REPAIR_SECONDS,
    ) -> None:
        """`sources`: resource, namespace (None: all) and label selector. `lists` is held while `confirm` lists, as by an Informer."""
        self._client = client
        self._cache = cache
        self._feed = feed
        self._sources = sources
        self._lists = lists
        self._period_seconds = period_seconds
        self._previous: dict[Source, int] = {}

    async def run(self) -> None:
        """Lists all sources again, one after the other, forever; a failed list is logged."""
        while True:
            for resource, namespace, selector in self._sources:
                await asyncio.sleep(self._period_seconds / len(self._sources) * random.uniform(0.9, 1.1))
                try:
                    await self.once(resource, namespace, selector)
                except KubeError as error:
                    log.warning("re-list failed", kind=resource.kind, error=str(error))

    async def confirm(self, resource: Resource, namespace: str | None, selector: str) -> None:
        """Returns once the cache shows all that a list of the source shows: it counts as listed from then on.

        Needed for what kopf watches, which doesn't announce that it has listed, and for a process that has waited for the lease.
        What doesn't come is listed again: if it was deleted before a watch began, that watch doesn't tell.
        """
        source = Source(resource.kind, namespace)
        failures = 0
        while True:
            try:
                async with self._lists:
                    await self.once(resource, namespace, selector)
                failures = 0
                async with asyncio.timeout(LIST_AGAIN_SECONDS):
                    while self._feed.owes(source):  # noqa: ASYNC110
                        await asyncio.sleep(_OWED_SECONDS)
            except TimeoutError:
                continue
            except KubeError as error:
                log.warning("list failed", source=str(source), error=str(error))
                self._feed.refused(source, str(error), forbidden=isinstance(error, ForbiddenError))
                failures += 1
                await asyncio.sleep(wait_seconds(failures))
            else:
                return self._feed.caught_up(source)

    async def once(self, resource: Resource, namespace: str | None, selector: str) -> Difference:
        """Lists a source once more, removes what is gone, notes what the watch owes, and returns the difference. Raises KubeError."""
        source = Source(resource.kind, namespace)
        listed: dict[ObjectKey, int] = {}
        list_version = 0
        async for page in self._client.list_pages(resource, namespace, selector, metadata_only=True):
            for item in page.items:
                metadata = item["metadata"]
                key = ObjectKey(resource.kind, metadata.get("namespace") or "", metadata["name"])
                listed[key] = int(metadata["resourceVersion"])
            list_version = int(page.resource_version)
        difference = compare(self._cache.versions(source), listed, list_version)
        for key in difference.vanished:
            log.warning("missed deletion repaired", kind=key.kind, namespace=key.namespace, name=key.name)
            REPAIRS.labels(key.kind).inc()
        self._feed.absent(source, listed, list_version)
        for key, version in difference.newer.items():
            if not self._cache.has_reached(key, version):  # it may have come and gone while we listed
                self._feed.newer(key, version)
        self._cache.forget_deletions(source, self._previous.get(source, 0))
        self._previous[source] = list_version
        return difference
