"""RLJobs and runtimes, watched by kopf: level-triggered events into the feed, nothing else of kopf.

No create/update/delete handlers, indices, timers or daemons, hence no annotations, no finalizers, no writes. Peering and
posting are off. Scanning is off: kopf then needs no right to list namespaces or CRDs, only discovery, which every
authenticated account has; namespaces are served as named, CRDs must exist at the start (`await_served`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import kopf
import structlog

from longboat_operator.kube.client import PAGE_SIZE, KubeClient
from longboat_operator.kube.errors import KubeError
from longboat_operator.kube.resources import CLUSTER_RL_RUNTIME, RL_JOB, RL_RUNTIME, Resource
from longboat_operator.kube.transport import LIST_TIMEOUT_SECONDS, Transport
from longboat_operator.watch.feed import Feed

_RETRY_SECONDS = 2.0
# How long a worker of kopf lives after its object's last event.
_IDLE_SECONDS = 0.5

log = structlog.get_logger(__name__)


def watched(namespaces: tuple[str, ...]) -> tuple[Resource, ...]:
    """Returns the kinds that kopf watches; cluster-scoped runtimes only for an operator of the whole cluster (no namespaces named)."""
    return (RL_JOB, RL_RUNTIME) if namespaces else (RL_JOB, RL_RUNTIME, CLUSTER_RL_RUNTIME)


async def await_served(client: KubeClient, resources: tuple[Resource, ...]) -> None:
    """Returns once the API server serves the kinds; logs meanwhile which it doesn't."""
    while True:
        try:
            served = await client.served(RL_JOB.group, RL_JOB.version)
        except KubeError as error:
            log.warning("discovery failed", error=str(error))
        else:
            missing = [resource.plural for resource in resources if resource.plural not in served]
            if not missing:
                return
            log.warning("waiting for CRDs; install Longboat's", missing=missing)
        await asyncio.sleep(_RETRY_SECONDS)


async def run_kopf(
    transport: Transport, namespaces: tuple[str, ...], feed: Feed, stop: asyncio.Event, started: asyncio.Event
) -> None:
    """Runs kopf until `stop`; sets `started` once its own signal handlers are in place."""
    registry = kopf.OperatorRegistry()
    for resource in watched(namespaces):
        kopf.on.event(resource.group, resource.version, resource.plural, registry=registry, id="feed")(_handler(feed))
    kopf.on.login(registry=registry)(_login(transport))
    await kopf.operator(
        registry=registry,
        settings=_settings(transport),
        standalone=True,
        clusterwide=not namespaces,
        namespaces=namespaces,
        stop_flag=stop,
        ready_flag=started,
    )


def _handler(feed: Feed) -> Any:
    async def on_event(event: dict[str, Any], **_: Any) -> None:
        if event["type"] == "DELETED":
            feed.remove(event["object"])
        else:
            feed.put(event["object"])

    return on_event


def _login(transport: Transport) -> Any:
    async def login(**_: Any) -> kopf.AiohttpSession:
        return kopf.AiohttpSession(server=transport.configuration.host, aiohttp_session=transport.session())

    return login


def _settings(transport: Transport) -> kopf.OperatorSettings:
    settings = kopf.OperatorSettings()
    settings.posting.enabled = False
    settings.peering.standalone = True
    settings.scanning.disabled = True
    settings.watching.chunk_size = PAGE_SIZE
    settings.watching.connect_timeout = transport.timeout_seconds
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
