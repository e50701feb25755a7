"""A standby that has waited for long takes over from what the API server holds, not from what it remembers."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from kubernetes.aio.client.configuration import Configuration

from e2e.cluster import Cluster
from longboat_operator import observe, planner
from longboat_operator.kube import client as kube_client
from longboat_operator.kube.client import KubeClient
from longboat_operator.kube.clock import boot_clock
from longboat_operator.kube.resources import LEASE, POD, RL_JOB
from longboat_operator.model import LABEL_ROLE, JobKey
from longboat_operator.shell import LeaseOptions, Options, Shell
from tests.operator_shell import small_plan
from tests.operator_shell.conftest import create_job, lease, open_shell, running
from tests.operator_shell.gateway import Gateway
from tests.operator_shell.test_process_live import BootClock, Process
from tests.operator_shell.test_shell_live import probe
from tests.support.ports import free_port
from tests.support.waiting import eventually_async

pytestmark = pytest.mark.cluster


def lists_metadata(request: web.Request) -> bool:
    return "PartialObjectMetadataList" in request.headers.get("Accept", "")


def watches(request: web.Request, plural: str) -> bool:
    return "watch" in request.query and request.path.endswith(f"/{plural}")


@pytest.fixture
async def leader(cluster: Cluster, namespace: str, tmp_path: Path) -> AsyncIterator[Process]:
    """Makes another operator, which runs as a process."""
    process = Process(cluster.kubeconfig, BootClock(tmp_path), namespace, f"--namespace={namespace}")
    yield process
    await process.kill_if_alive()


def options(namespace: str) -> Options:
    return Options((namespace,), lease(namespace), free_port(), free_port())


async def named(admin: KubeClient, namespace: str, role: str) -> dict[str, str]:
    """The uids of a role's pods, by name."""
    pages = admin.list_pages(POD, namespace, f"{LABEL_ROLE}={role}")
    return {item["metadata"]["name"]: item["metadata"]["uid"] async for page in pages for item in page.items}


async def test_pages_that_take_thirty_seconds_keep_the_lease(
    admin: KubeClient, namespace: str, gateway: tuple[Gateway, Configuration], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the lease's clock, which only the pages move: each is given after renewals every 6 of its 30 seconds."""
    monkeypatch.setattr(kube_client, "PAGE_SIZE", 1)
    await admin.create(RL_JOB, small_plan.manifest(namespace, "x"))
    await admin.create(RL_JOB, small_plan.manifest(namespace, "y"))
    slow, configuration = gateway
    short = replace(options(namespace), lease=LeaseOptions(namespace, "operator"))
    shell = open_shell(configuration, short, small_plan.observe, small_plan.plan)
    elector, now, pages, one_at_a_time = shell._elector, boot_clock(), 0, asyncio.Lock()
    seen: set[int] = set()
    assert elector is not None
    leadership = elector.leadership
    monkeypatch.setattr(elector, "_clock", lambda: now)
    monkeypatch.setattr(leadership, "_clock", lambda: now)
    monkeypatch.setattr(elector, "_retry_seconds", 0.01)
    monkeypatch.setattr(shell._repair, "_period_seconds", 1e9)  # no lists but those that are waited for

    def renewed_at(moment: float) -> bool:
        return leadership._renewed == moment

    async def page(request: web.Request) -> None:
        nonlocal now, pages
        if not lists_metadata(request) or leadership._renewed is None or plans(shell, namespace):
            return
        async with one_at_a_time:
            pages += 1
            seen.add((await probe(shell._options.health_port, "/readyz"))[0])
            for _ in range(5):
                now += 6.0
                await eventually_async(partial(renewed_at, now))

    slow.before = page
    async with running(shell):
        await eventually_async(lambda: plans(shell, namespace))
        assert pages > len(shell._jobs + shell._children)  # the jobs took two
        assert leadership.may_write
        assert seen == {503}  # it leads, and doesn't plan yet
        lease = await admin.get(LEASE, namespace, "operator")
        assert lease["spec"]["holderIdentity"] == elector.identity
        assert lease["spec"]["leaseTransitions"] == 0

        async def run() -> bool:
            jobs = [await admin.get(RL_JOB, namespace, name) for name in ("x", "y")]
            return all((job.get("status") or {}).get("phase") == "Running" for job in jobs)

        await eventually_async(run)


async def test_a_pod_that_was_lost_unseen_by_the_standby_is_no_second_loss(
    admin: KubeClient, namespace: str, gateway: tuple[Gateway, Configuration], leader: Process
) -> None:
    await create_job(admin, namespace)
    late, configuration = gateway
    thawed = asyncio.Event()
    thawed.set()

    async def pods_are_late(request: web.Request) -> None:
        if watches(request, "pods"):
            await thawed.wait()

    late.after = pods_are_late

    async def reported_losses() -> int:
        """Counts the losses of reward pods that the status reports."""
        roles = ((await admin.get(RL_JOB, namespace, "x")).get("status") or {}).get("roles") or {}
        return int((roles.get("reward") or {}).get("restarts", 0))

    await leader.start()
    await eventually_async(lambda: named(admin, namespace, "reward"))
    standby = open_shell(configuration, options(namespace), observe.observe, planner.plan)
    key = JobKey(namespace, "x")
    async with running(standby):
        await eventually_async(lambda: standby._cache.children(key)["Pod"])

        thawed.clear()
        [(name, uid)] = (await named(admin, namespace, "reward")).items()
        await admin.delete(POD, namespace, name, uid, grace_seconds=0)

        async def replaced() -> bool:
            return set(await named(admin, namespace, "reward")) == {name.replace("-a0", "-a1")}

        await eventually_async(replaced)
        await eventually_async(lambda: _equals(reported_losses, 1))
        job = await admin.get(RL_JOB, namespace, "x")
        await eventually_async(lambda: _version(standby, key) >= int(job["metadata"]["resourceVersion"]))
        assert name in standby._cache.children(key)["Pod"]  # that is all it knows
        after = await named(admin, namespace, "reward")

        leader.send(signal.SIGTERM)
        assert (await leader.end())[0] == 0
        await eventually_async(lambda: standby._elector is not None and standby._elector.leadership.may_write)
        await eventually_async(lambda: plans(standby, namespace) or name not in standby._cache.children(key)["Pod"])
        thawed.set()
        await eventually_async(
            lambda: plans(standby, namespace) and set(standby._cache.children(key)["Pod"]) >= set(after)
        )
        await eventually_async(lambda: standby._queue.depth == 0 and not standby._controller.expectations.waiting())
        assert await reported_losses() == 1
        assert await named(admin, namespace, "reward") == after


def plans(shell: Shell, namespace: str) -> bool:
    return shell._leading and shell._freshness.serves(namespace)


async def _equals(read: Callable[[], Awaitable[int]], wanted: int) -> bool:
    return await read() == wanted


def _version(shell: Shell, key: JobKey) -> int:
    held: Any = shell._cache.job(key) or {"metadata": {}}
    return int(held["metadata"].get("resourceVersion", 0))
