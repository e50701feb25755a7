"""RLJobs and runtimes, watched by kopf: level-triggered events into the feed, nothing else of kopf.

No create/update/delete handlers, indices, timers or daemons, hence no annotations, no finalizers, no writes. Peering and
posting are off. Scanning is off: kopf then needs no right to list namespaces or CRDs, only discovery, which every
authenticated account has; namespaces are served as named.

kopf ends with the first source that is gone, such as a kind whose CRD is deleted; one that is forbidden, as when a RoleBinding is
deleted, it asks for again without a word. In both cases it is restarted without the namespaces in which a kind refuses, until they answer.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterable, Iterator
from itertools import count
from typing import Any

import aiohttp
import kopf
import structlog

from longboat_operator.kube.client import PAGE_SIZE, KubeClient
from longboat_operator.kube.errors import KubeError, NotFoundError
from longboat_operator.kube.resources import CLUSTER_RL_RUNTIME, RL_JOB, RL_RUNTIME, Resource
from longboat_operator.kube.transport import LIST_TIMEOUT_SECONDS, Transport
from longboat_operator.watch.cache import Source
from longboat_operator.watch.feed import Feed
from longboat_operator.watch.informer import wait_seconds
from longboat_operator.watch.repair import Repair

# How long a worker of kopf lives after its object's last event.
_IDLE_SECONDS = 0.5
# A server that knows no version must not be asked for a new list without pause.
_LIST_AGAIN_SECONDS = 2.0
_PROBES_AT_ONCE = 8
# A run of kopf that lasted for longer hasn't failed at the start.
_STEADY_SECONDS = 10.0
_CANCEL_AGAIN_SECONDS = 0.5
_REFUSALS = (403, 404)

log = structlog.get_logger(__name__)


def watched(namespaces: tuple[str, ...]) -> tuple[Resource, ...]:
    """Returns the kinds that kopf watches; cluster-scoped runtimes only for an operator of the whole cluster (no namespaces named)."""
    return (RL_JOB, RL_RUNTIME) if namespaces else (RL_JOB, RL_RUNTIME, CLUSTER_RL_RUNTIME)


class JobWatch:
    """Keeps kopf watching in all namespaces in which every kind answers."""

    def __init__(
        self, client: KubeClient, transport: Transport, namespaces: tuple[str, ...], feed: Feed, repair: Repair
    ) -> None:
        """Takes the namespaces to watch; none: the whole cluster."""
        self._client = client
        self._transport = transport
        self._resources = watched(namespaces)
        self._scopes: tuple[str | None, ...] = namespaces or (None,)
        self._feed = feed
        self._repair = repair

    async def run(self) -> None:
        """Runs kopf, again and again, forever; ever more rarely while it ends at once, or no namespace answers."""
        failures = 0
        while True:
            begun = time.monotonic()
            if answering := await self._answering(self._scopes):
                await self._watch(answering, [scope for scope in self._scopes if scope not in answering])
            failures = 1 if time.monotonic() - begun > _STEADY_SECONDS else failures + 1
            await asyncio.sleep(wait_seconds(failures))

    async def _watch(self, scopes: list[str | None], refusing: list[str | None]) -> None:
        """Runs kopf in these namespaces until it ends, or until one of those that refuse answers."""
        run = KopfRun(self._transport, self._resources, [scope for scope in scopes if scope is not None], self._feed)
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [
                    group.create_task(self._repair.confirm(resource, scope, ""))
                    for resource in self._resources
                    for scope in scopes
                ]
                ends = [group.create_task(run.until_ended())]
                if refusing:
                    ends.append(group.create_task(self._await_answer(refusing)))
                await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
                for task in (*tasks, *ends):
                    task.cancel()
        finally:
            run.stop()
            await run.until_ended()

    async def _await_answer(self, scopes: list[str | None]) -> None:
        for failures in count(1):
            await asyncio.sleep(wait_seconds(failures))
            if await self._answering(scopes):
                return

    async def _answering(self, scopes: Iterable[str | None]) -> list[str | None]:
        """Returns the namespaces in which every kind can be listed and watched; records why the others can't.

        No kind of the others is watched until then, so each must be listed again.
        """
        limit = asyncio.Semaphore(_PROBES_AT_ONCE)

        async def answers(scope: str | None) -> bool:
            async with limit:
                answering = [resource for resource in self._resources if await self._answers(resource, scope)]
            if len(answering) == len(self._resources):
                return True
            for resource in answering:
                self._feed.unwatched(Source(resource.kind, scope))
            return False

        scopes = [*scopes]
        answering = await asyncio.gather(*map(answers, scopes))
        return [scope for scope, yes in zip(scopes, answering, strict=True) if yes]

    async def _answers(self, resource: Resource, scope: str | None) -> bool:
        try:
            version = await self._client.version(resource, scope)
            async with self._client.watch(resource, scope, "", str(version)):
                return True
        except KubeError as error:
            source = Source(resource.kind, scope)
            cure = "; are Longboat's CRDs installed?" if isinstance(error, NotFoundError) else ""
            log.warning("can't be watched", source=str(source), error=f"{error}{cure}")
            self._feed.refused(source, str(error))
            return False


class KopfRun:
    """A run of kopf, in a thread of its own: when kopf ends, it cancels every task of its event loop that is younger."""

    def __init__(
        self, transport: Transport, resources: tuple[Resource, ...], namespaces: list[str], feed: Feed
    ) -> None:
        """Starts it; no `namespaces`: in the whole cluster."""
        self._transport = transport
        self._namespaces = namespaces
        self._sessions: list[aiohttp.ClientSession] = []
        self._stop = threading.Event()
        self._loop = asyncio.get_running_loop()
        self._ended = asyncio.Event()
        self._registry = kopf.OperatorRegistry()
        for resource in resources:
            where = resource.group, resource.version, resource.plural
            kopf.on.event(*where, registry=self._registry, id="feed")(self._handler(feed))
        kopf.on.login(registry=self._registry)(self._login)
        threading.Thread(target=self._run, name="kopf", daemon=True).start()

    def stop(self) -> None:
        """Makes it end."""
        self._stop.set()

    async def until_ended(self) -> None:
        """Returns once it has ended."""
        await self._ended.wait()

    def _run(self) -> None:
        try:
            asyncio.run(self._operate())
        except Exception as error:  # noqa: BLE001 - whatever it is, kopf is started again, and it has logged a traceback
            log.warning("kopf has ended", error=str(error))
        finally:
            self._loop.call_soon_threadsafe(self._ended.set)

    async def _operate(self) -> None:
        """Does what `kopf.operator` does, and ends all that it leaves behind: after a failure, its other watches."""
        tasks = await kopf.spawn_tasks(
            registry=self._registry,
            settings=_settings(self._transport),
            standalone=True,
            clusterwide=not self._namespaces,
            namespaces=self._namespaces,
            stop_flag=self._stop,
        )
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        self._stop.set()  # a thread of kopf's waits for it
        # Callbacks of kopf's fail when all its tasks are cancelled at once.
        asyncio.get_running_loop().set_exception_handler(lambda *_: None)
        # Once isn't enough: a request whose connection breaks while it is cancelled waits for other credentials instead.
        while others := asyncio.all_tasks() - {asyncio.current_task()}:
            for task in others:
                task.cancel()
            await asyncio.wait(others, timeout=_CANCEL_AGAIN_SECONDS)
        for session in self._sessions:
            await session.close()
        for task in done:
            task.result()

    def _handler(self, feed: Feed) -> Any:
        async def on_event(event: dict[str, Any], **_: Any) -> None:
            take_in = feed.remove if event["type"] == "DELETED" else feed.put
            self._loop.call_soon_threadsafe(take_in, event["object"])

        return on_event

    async def _login(self, **_: Any) -> kopf.AiohttpSession:
        session = self._transport.session(self._answered)
        self._sessions.append(session)
        return kopf.AiohttpSession(server=self._transport.configuration.host, aiohttp_session=session)

    def _answered(self, status: int) -> None:
        if status in _REFUSALS:
            self._stop.set()


def _settings(transport: Transport) -> kopf.OperatorSettings:
    settings = kopf.OperatorSettings()
    settings.posting.enabled = False
    settings.peering.standalone = True
    settings.scanning.disabled = True
    settings.watching.chunk_size = PAGE_SIZE
    settings.watching.connect_timeout = transport.timeout_seconds
    settings.watching.reconnect_backoff = _LIST_AGAIN_SECONDS
    settings.queueing.idle_timeout = _IDLE_SECONDS
    settings.networking.request_timeout = LIST_TIMEOUT_SECONDS  # it only reads
    settings.networking.connect_timeout = transport.timeout_seconds
    settings.networking.error_backoffs = _Backoffs()
    return settings


class _Backoffs:
    """Waits between kopf's attempts, without end: an API server that is away for long must not end the process."""

    def __iter__(self) -> Iterator[float]:
        yield from (0.5, 1.0, 2.0, 4.0)
        while True:
            yield 8.0
