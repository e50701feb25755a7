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
from longboat_operator.kube.events import EventRecorder
from longboat_operator.kube.resources import CHILDREN, CLUSTER_RL_RUNTIME, CORDONED_NODE, Resource
from longboat_operator.kube.transport import Transport
from longboat_operator.lease import DURATION_SECONDS, Elector
from longboat_operator.lookups import LookUps
from longboat_operator.metrics import REGISTRY, ProcessMetrics
from longboat_operator.model import DNS_PEERS, LABEL_JOB, REQUEST_TIMEOUT_SECONDS, Key, Object
from longboat_operator.pod_warnings import PodWarnings
from longboat_operator.queue import WorkQueue
from longboat_operator.releases import Releases
from longboat_operator.watch.cache import Cache, Source
from longboat_operator.watch.feed import Feed
from longboat_operator.watch.freshness import Freshness
from longboat_operator.watch.informer import Informer
from longboat_operator.watch.jobs import JobWatch, watched
from longboat_operator.watch.repair import Repair

# How long kopf and the rest may take to end after the lease is given up.
_END_SECONDS = 10.0
# An operator of hundreds of namespaces has thousands of sources: they must not all be listed at the same moment.
_LISTS_AT_ONCE = 8

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class LeaseOptions:
    """Says which Lease to compete for, and how long a standby waits after the leader's last renewal."""

    namespace: str
    name: str
    duration_seconds: float = DURATION_SECONDS


@dataclass(frozen=True, slots=True)
class Options:
    """Says how an operator is run. No `namespaces`: the whole cluster. No `lease`: this process alone.

    `may_delete`: this operator has the right to delete Secrets and NetworkPolicies of jobs. `release` is the namespace and name of its
    Lease, which is written into the jobs that it serves (`status.operator`). None: that field is ignored.
    """

    namespaces: tuple[str, ...] = ()
    lease: LeaseOptions | None = None
    health_port: int = 8081
    metrics_port: int = 8080
    requests_in_flight: int = 32
    request_timeout_seconds: float = REQUEST_TIMEOUT_SECONDS
    dns_peers: tuple[Object, ...] = DNS_PEERS
    may_delete: bool = False
    release: str | None = None
    adopt: bool = False


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
        # Nodes have no namespace, so an operator for single namespaces may not watch them.
        self._nodes: list[tuple[Resource, str | None, str]] = [] if options.namespaces else [(CORDONED_NODE, None, "")]
        self._streams = self._children + self._nodes
        self._cache = Cache(
            sees_cluster_runtimes=CLUSTER_RL_RUNTIME in watched(options.namespaces), may_watch_nodes=bool(self._nodes)
        )
        self._freshness = Freshness(
            _sources(self._jobs + self._streams), bookmarked=_sources(self._streams), optional=_sources(self._nodes)
        )
        self._queue: WorkQueue[Key] = WorkQueue(group=lambda key: key.namespace)
        clock = self._transport.server_clock
        recorder = EventRecorder(client, clock, self._identity)
        self._releases = None
        if options.release and not options.adopt:
            self._releases = Releases(self._ungated, recorder, options.release)
        applier = Applier(client, self._cache, recorder, AcceptedDryRuns(time.monotonic))
        look_ups = LookUps(client, PodWarnings(client, time.monotonic), clock, time.monotonic)
        self._controller = Controller(
            self._cache, self._queue, observe, plan, look_ups, applier, self._freshness, clock, self._releases
        )
        self._feed = Feed(self._cache, self._freshness, clock, self._controller.changed, self._controller.listed)
        self._repair = Repair(self._ungated, self._cache, self._feed, self._jobs + self._streams, self._lists)

    async def run(self) -> None:
        """Serves until told to stop.

        Raises:
            LeadershipLostError: another process leads now, or the lease couldn't be renewed.
        """
        options = self._options
        log.info("starting", identity=self._identity, namespaces=options.namespaces or "all")
        registry = CollectorRegistry()
        registry.register(JobMetrics(self._cache))
        registry.register(ProcessMetrics(self._gauges, self._failing))
        servers = [
            await serve_health(options.health_port, self._health),
            await serve_metrics(options.metrics_port, (REGISTRY, registry)),
        ]
        self._handle_signals()
        lead = asyncio.Event()
        # A plan mostly waits for one request at a time.
        workers = [asyncio.create_task(self._work(lead), name=f"worker {n}") for n in range(options.requests_in_flight)]
        jobs = JobWatch(self._ungated, self._transport, options.namespaces, self._feed, self._repair)
        others: list[asyncio.Task[Any]] = [
            asyncio.create_task(self._become_leader(lead), name="leadership"),
            asyncio.create_task(self._renew(), name="renewal"),
            asyncio.create_task(self._repair.run(), name="repair"),
            asyncio.create_task(jobs.run(), name="kopf"),
            *(
                asyncio.create_task(
                    Informer(self._ungated, *stream, self._feed, self._lists).run(), name=f"informer {stream[0].kind}"
                )
                for stream in self._streams
            ),
            asyncio.create_task(self._stop.wait(), name="stop"),
        ]
        try:
            done, _ = await asyncio.wait([*workers, *others], return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            log.info("stopping")
            self._queue.close()
            if self._leading:  # otherwise no worker has started
                await asyncio.wait(workers, timeout=self._transport.timeout_seconds)
            if self._elector is not None:
                await self._elector.release()
            for task in (*workers, *others):
                task.cancel()
            _, pending = await asyncio.wait([*workers, *others], timeout=_END_SECONDS)
            if pending:
                log.error("tasks don't end", tasks=[task.get_name() for task in pending])
            for server in servers:
                await server.cleanup()
            await self._transport.close()

    def stop(self) -> None:
        """Ends `run`."""
        self._stop.set()

    def _handle_signals(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, self.stop)

    async def _become_leader(self, lead: asyncio.Event) -> None:
        """Waits until every source has been listed or has refused, and wins the lease if there is one; then starts the workers.

        A standby may have waited for days. What its streams missed meanwhile is found by listing every source again, before its
        namespace is planned. The previous leader wrote nothing after it lost the lease, so one list is enough.
        """
        await _until(lambda: self._freshness.settled)
        log.info("caches are warm", jobs=sum(1 for _ in self._cache.jobs()))
        # One namespace after the other, so that the first is served long before the last.
        sources = sorted(self._jobs + self._streams, key=lambda source: source[1] or "") if self._elector else []
        if self._elector is not None:
            await self._elector.acquire()
            self._elected.set()
            for resource, namespace, _ in sources:
                self._freshness.note_unlisted(Source(resource.kind, namespace))
        self._leading = True
        self._controller.lead()
        lead.set()
        await asyncio.gather(*(self._repair.confirm(*source) for source in sources))
        await self._stop.wait()

    async def _renew(self) -> None:
        """Keeps the lease, from the moment that it is won."""
        await self._elected.wait()
        if self._elector is not None:
            await self._elector.keep()

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
        freshness = self._freshness
        stalled = self._queue.stalled_seconds
        return judge(freshness.problems(now), freshness.dead(now), stalled, self._leading, freshness.notes)

    def _failing(self) -> list[tuple[str, str]]:
        return [(source.kind, source.namespace or "") for source in self._freshness.failing]

    def _gauges(self) -> Mapping[str, float]:
        now = time.monotonic()
        writes = self._elector.leadership.may_write if self._elector else self._leading
        return {
            "rljob_queue_depth": self._queue.depth,
            "rljob_queue_oldest_seconds": self._queue.oldest_seconds,
            "longboat_jobs": sum(1 for _ in self._cache.jobs()),
            "longboat_jobs_of_other_releases": len(self._releases.jobs) if self._releases else 0,
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
