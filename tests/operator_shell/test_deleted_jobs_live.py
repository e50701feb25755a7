"""What the operator does about a job whose deletion it hears of last."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest
from aiohttp import web
from kubernetes.aio.client.configuration import Configuration

from longboat_operator import observe, planner
from longboat_operator.kube.client import KubeClient
from longboat_operator.kube.errors import NotFoundError
from longboat_operator.kube.resources import CHILDREN, POD, RL_JOB
from longboat_operator.model import LABEL_JOB, JobKey
from longboat_operator.shell import Options
from tests.operator_shell.conftest import create_job, lease, open_shell, running
from tests.operator_shell.gateway import Gateway
from tests.support.ports import free_port
from tests.support.waiting import eventually_async

pytestmark = pytest.mark.cluster


async def test_what_the_garbage_collector_takes_is_not_made_again(
    admin: KubeClient, namespace: str, gateway: tuple[Gateway, Configuration]
) -> None:
    late, configuration = gateway
    current = asyncio.Event()
    current.set()

    async def jobs_are_late(request: web.Request) -> None:
        if "watch" in request.query and request.path.endswith("/rljobs"):
            await current.wait()

    late.after = jobs_are_late
    await create_job(admin, namespace)
    options = Options((namespace,), lease(namespace), free_port(), free_port())
    key = JobKey(namespace, "x")

    collected = [resource for resource in CHILDREN if resource.kind != "PersistentVolumeClaim"]

    async def children() -> set[tuple[str, str]]:
        return {
            (resource.kind, item["metadata"]["name"])
            for resource in collected
            async for page in admin.list_pages(resource, namespace, LABEL_JOB)
            for item in page.items
        }

    shell = open_shell(configuration, options, observe.observe, planner.plan)
    shell._repair._period_seconds = 1e9  # it would find that the job is gone
    async with running(shell):
        await eventually_async(lambda: len(shell._cache.children(key)["Pod"]) > 3 and shell._queue.idle(0.5))
        current.clear()
        job = await admin.get(RL_JOB, namespace, "x")
        await admin.delete(RL_JOB, namespace, "x", job["metadata"]["uid"])
        for pod in list(shell._cache.children(key)["Pod"].values()):  # no node ends them
            with suppress(NotFoundError):
                await admin.delete(POD, namespace, pod["metadata"]["name"], pod["metadata"]["uid"], grace_seconds=0)
        await eventually_async(lambda: not any(shell._cache.children(key)[resource.kind] for resource in collected))
        assert shell._cache.job(key) is not None
        await eventually_async(lambda: not shell._queue.depth)
        assert await children() == set()
        current.set()
        await eventually_async(lambda: shell._cache.job(key) is None)
        assert await children() == set()
