"""The process: what runs side by side, in which order it starts, and how it ends."""

from __future__ import annotations

import asyncio
import signal
import socket
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import structlog
from kubernetes.aio.client.configuration import Configuration
from prometheus_client import CollectorRegistry

from longboat_operator.apply import Applier
from longboat_operator.controller import Controller, MakePlan, Observe
from longboat_operator.dry_runs import AcceptedDryRuns
from longboat_operator.health import Health, judge, serve_health, serve_metrics
from longboat_operator.job_metrics import JobMetrics
from longboat_operator.kube.client import KubeClient
from longboat_operator.kube.errors import KubeError
from longboat_operator.kube.events import EventRecorder
from longboat_operator.kube.resources import CHILDREN, CLUSTER_RL_RUNTIME, Resource
from longboat_operator.kube.transport import Transport
from longboat_operator.lease import DURATION_SECONDS, Elector
from longboat_operator.lookups import LookUps
from longboat_operator.metrics import REGISTRY, ProcessMetrics
from longboat_operator.model import DNS_PEERS, LABEL_JOB, REQUEST_TIMEOUT_SECONDS, Key, Object
from longboat_operator.pod_warnings import PodWarnings
from longboat_operator.queue import WorkQueue
from longboat_operator.watch.cache import Cache, Source
from longboat_operator.watch.feed import Feed
from longboat_operator.watch.freshness import Freshness
from longboat_operator.watch.informer import Informer
from longboat_operator.watch.jobs import await_served, run_kopf, watched
from longboat_operator.watch.repair import Repair

# How long kopf and the rest may take to end after the lease is given up.
_END_SECONDS = 10.0
# An operator of hundreds of namespaces has thousands of sources: they must not all be listed at the same moment.
_LISTS_AT_ONCE = 8
_LIST_AGAIN_SECONDS = 1.0

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class LeaseOptions:
    """Says which Lease to compete for, and how long a standby waits after the leader's last renewal."""

    namespace: str
    name: str
    duration_seconds: float = DURATION_SECONDS


@dataclass(frozen=True, slots=True)
class Options:
    """Says how an operator is run. No `namespaces`: the whole cluster. No `lease`: this process alone."""

    namespaces: tuple[str, ...] = ()
    lease: LeaseOptions | None = None
    health_port: int = 8081
    metrics_port: int = 8080
    requests_in_flight: int = 32
    request_timeout_seconds: float = REQUEST_TIMEOUT_SECONDS
    dns_peers: tuple[Object, ...] = DNS_PEERS


class Shell:
    """One operator process. `run` returns after SIGTERM, SIGINT or `stop`, and raises whatever else ends it."""

    def __init__(self, configuration: Configuration, options: Options, observe: Observe, plan: MakePlan) -> None:
        self._options = options
        self._stop = asyncio.Event()
        self._identity = f"{socket.gethostname()}_{uuid.uuid4().hex[:8]}"
        self._transport = Transport(configuration, options.request_timeout_seconds)
        self._ungated = KubeClient(self._transport, lambda: None)
        self._elector = self._make_elector(options.lease)
        gate = self._elector.leadership.check if self._elector else lambda: None
        client = KubeClient(self._transport, gate, options.requests_in_flight)
        self._elected = asyncio.Event()
        self._leading = False
        self._lists = asyncio.Semaphore(_LISTS_AT_ONCE)

        scopes: tuple[str | None, ...] = options.namespaces or (None,)
        self._jobs = [(resource, namespace, "") for resource in watched(options.namespaces) for namespace in scopes]
        self._children = [(resource, namespace, LABEL_JOB) for resource in CHILDREN for namespace in scopes]
        self._cache = Cache(sees_cluster_runtimes=CLUSTER_RL_RUNTIME in watched(options.namespaces))
        self._freshness = Freshness(_sources(self._jobs + self._children), bookmarked=_sources(self._children))
        self._queue: WorkQueue[Key] = WorkQueue(group=lambda key: key.namespace)
        events = EventRecorder(client, self._identity)
        applier = Applier(client, self._cache, events, AcceptedDryRuns(time.monotonic))
        look_ups = LookUps(client, PodWarnings(client, time.monotonic))
        self._controller = Controller(self._cache, self._queue, observe, plan, look_ups, applier)
        self._feed = Feed(self._cache, self._freshness, self._controller.changed, self._controller.listed)
        self._repair = Repair(self._ungated, self._cache, self._feed, self._jobs + self._children)

    async def run(self) -> None:
        """Serves until told to stop.

        Raises:
            LeadershipLostError: another process leads now, or the lease couldn't be renewed.
        """
        options = self._options
        log.info("starting", identity=self._identity, namespaces=options.namespaces or "all")
        registry = CollectorRegistry()
        registry.register(JobMetrics(self._cache))
        registry.register(ProcessMetrics(self._gauges))
        servers = [
            await serve_health(options.health_port, self._health),
            await serve_metrics(options.metrics_port, (REGISTRY, registry)),
        ]
        # kopf, when it ends, cancels every task made after it was started: so it is started last.
        lead = asyncio.Event()
        # A plan mostly waits for one request at a time.
        workers = [asyncio.create_task(self._work(lead), name=f"worker {n}") for n in range(options.requests_in_flight)]
        kopf_stop, kopf_started = asyncio.Event(), asyncio.Event()
        others: list[asyncio.Task[Any]] = [
            asyncio.create_task(self._become_leader(lead, kopf_started), name="leadership"),
            asyncio.create_task(self._renew(), name="renewal"),
            asyncio.create_task(self._repair.run(), name="repair"),
            *(
                asyncio.create_task(
                    Informer(self._ungated, *child, self._feed, self._lists).run(), name=f"informer {child[0].kind}"
                )
                for child in self._children
            ),
            asyncio.create_task(self._stop_on_signal(kopf_started), name="signals"),
            asyncio.create_task(self._stop.wait(), name="stop"),
        ]
        kopf = asyncio.create_task(self._kopf(kopf_stop, kopf_started), name="kopf")
        try:
            done, _ = await asyncio.wait([*workers, *others, kopf], return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            log.info("stopping")
            self._queue.close()
            if self._leading:  # otherwise no worker has started
                await asyncio.wait(workers, timeout=self._transport.timeout_seconds)
            if self._elector is not None:
                await self._elector.release()
            kopf_stop.set()
            for task in (*workers, *others, *([] if kopf_started.is_set() else [kopf])):
                task.cancel()
            _, pending = await asyncio.wait([*workers, *others, kopf], timeout=_END_SECONDS)
            if pending:
                log.error("tasks don't end", tasks=[task.get_name() for task in pending])
            for server in servers:
                await server.cleanup()
            await self._transport.close()

    def stop(self) -> None:
        """Ends `run`."""
        self._stop.set()

    async def _kopf(self, stop: asyncio.Event, started: asyncio.Event) -> None:
        await await_served(self._ungated, watched(self._options.namespaces))
        await run_kopf(self._transport, self._options.namespaces, self._feed, stop, started)

    async def _stop_on_signal(self, kopf_started: asyncio.Event) -> None:
        """Sets our signal handlers before kopf sets its own, and again after that; then waits until the operator is to stop."""
        self._handle_signals()
        await kopf_started.wait()
        self._handle_signals()
        await self._stop.wait()

    def _handle_signals(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, self.stop)

    async def _become_leader(self, lead: asyncio.Event, kopf_started: asyncio.Event) -> None:
        """Waits for warm caches and, if there is a lease, wins it and catches up with the API server; then starts the workers."""
        await kopf_started.wait()
        await self._warm()
        if self._elector is not None:
            await self._elector.acquire()
            self._elected.set()
            await self._catch_up()
        self._leading = True
        self._controller.lead()
        lead.set()
        await self._stop.wait()

    async def _renew(self) -> None:
        """Keeps the lease, from the moment that it is won."""
        await self._elected.wait()
        if self._elector is not None:
            await self._elector.keep()

    async def _catch_up(self) -> None:
        """Returns once the caches show everything of the watched kinds that the previous leader may have written.

        A standby may have waited for days. What its streams missed meanwhile is found by listing every source again; what
        they owe must then arrive. The previous leader wrote nothing after it lost the lease, so one list is enough.
        """
        started = time.monotonic()
        await asyncio.gather(*(self._list_again(*listed) for listed in self._jobs + self._children))
        await _until(lambda: not self._freshness.owing)
        log.info("caught up", seconds=round(time.monotonic() - started, 3))

    async def _warm(self) -> None:
        """Returns once every source has been listed."""
        for resource, namespace, selector in self._jobs:
            await self._warm_kopf(resource, namespace, selector)
        await _until(lambda: self._freshness.listed)
        log.info("caches are warm", jobs=sum(1 for _ in self._cache.jobs()))

    async def _warm_kopf(self, resource: Resource, namespace: str | None, selector: str) -> None:
        """Waits until kopf has delivered what a list of our own shows: kopf doesn't announce that it has listed."""
        source = Source(resource.kind, namespace)
        await self._list_again(resource, namespace, selector)
        await _until(lambda: not self._freshness.owes(source))
        self._freshness.note_listed(source, time.monotonic())

    async def _list_again(self, resource: Resource, namespace: str | None, selector: str) -> None:
        """Lists a source for repair, until it succeeds."""
        while True:
            try:
                async with self._lists:
                    await self._repair.once(resource, namespace, selector)
            except KubeError as error:
                log.warning("list failed", kind=resource.kind, namespace=namespace, error=str(error))
                await asyncio.sleep(_LIST_AGAIN_SECONDS)
            else:
                return

    async def _work(self, lead: asyncio.Event) -> None:
        await lead.wait()
        await self._controller.work()

    def _make_elector(self, lease: LeaseOptions | None) -> Elector | None:
        if lease is None:
            return None
        timeout = self._transport.timeout_seconds
        return Elector(self._ungated, lease.namespace, lease.name, self._identity, timeout, lease.duration_seconds)

    def _health(self) -> Health:
        now = time.monotonic()
        problems = self._freshness.problems(now)
        if self._elected.is_set() and not self._leading:
            problems.append("the lease is won, but the caches have not yet caught up")
        return judge(problems, self._freshness.dead(now), self._queue.stalled_seconds, self._leading)

    def _gauges(self) -> Mapping[str, float]:
        now = time.monotonic()
        writes = self._elector.leadership.may_write if self._elector else self._leading
        return {
            "rljob_queue_depth": self._queue.depth,
            "rljob_queue_oldest_seconds": self._queue.oldest_seconds,
            "longboat_jobs": sum(1 for _ in self._cache.jobs()),
            "longboat_leader": float(writes),
            "longboat_watch_lag_seconds": self._freshness.lag(now),
            "longboat_watch_silence_seconds": max(self._freshness.silence(now).values(), default=0.0),
        }


async def _until(true: Callable[[], bool]) -> None:
    """Polls; for what happens once in a process."""
    while not true():  # noqa: ASYNC110
        await asyncio.sleep(0.05)


def _sources(listed: list[tuple[Resource, str | None, str]]) -> list[Source]:
    return [Source(resource.kind, namespace) for resource, namespace, _ in listed]
