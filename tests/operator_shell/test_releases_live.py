"""Two releases that see the same job."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from e2e.cluster import Cluster
from longboat_operator import controller, releases
from longboat_operator.kube.client import KubeClient
from longboat_operator.kube.config import load_configuration
from longboat_operator.kube.resources import EVENT, POD, RL_JOB
from longboat_operator.model import JobKey
from longboat_operator.observe import observe
from longboat_operator.planner import plan
from longboat_operator.shell import LeaseOptions, Options, Shell
from tests.operator_shell.conftest import LEASE_SECONDS, create_job, open_shell, running
from tests.support.ports import free_port
from tests.support.waiting import eventually_async

pytestmark = pytest.mark.cluster


async def shell_of(cluster: Cluster, namespace: str, name: str) -> Shell:
    release = f"{namespace}/{name}"
    lease = LeaseOptions(namespace, name, LEASE_SECONDS)
    options = Options((namespace,), lease, free_port(), free_port(), release=release)
    return open_shell(await load_configuration(cluster.kubeconfig), options, partial(observe, release=release), plan)


async def test_only_the_release_that_a_job_names_serves_it_until_that_is_gone(
    cluster: Cluster, admin: KubeClient, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(releases, "READ_SECONDS", 0.1)
    monkeypatch.setattr(controller, "OTHER_RELEASE_SECONDS", 0.2)
    key = JobKey(namespace, "x")

    async def status() -> dict[str, Any]:
        return (await admin.get(RL_JOB, namespace, "x")).get("status") or {}

    async def served_by(name: str) -> bool:
        return (await status()).get("operator") == f"{namespace}/{name}"

    async def losses() -> tuple[int, int]:
        """How many the status counts, and how many records of them there are."""
        shown = await status()
        return shown.get("restarts", 0), len(shown.get("restartHistory", ()))

    async def an_event_says_so() -> bool:
        events = [event async for page in admin.list_pages(EVENT, namespace) for event in page.items]
        return [e["involvedObject"]["name"] for e in events if e["reason"] == "ServedByAnotherRelease"] == ["x"]

    async with running(await shell_of(cluster, namespace, "first")):
        await create_job(admin, namespace)
        await eventually_async(partial(served_by, "first"))
        async with running(await shell_of(cluster, namespace, "second")) as second:
            await eventually_async(lambda: second._releases and key in second._releases.jobs)
            await eventually_async(an_event_says_so)
            pods = [pod async for page in admin.list_pages(POD, namespace) for pod in page.items]
            for pod in pods:
                await admin.delete(POD, namespace, pod["metadata"]["name"], pod["metadata"]["uid"], grace_seconds=0)

            async def each_counted_once() -> bool:
                return await losses() == (len(pods), len(pods))

            await eventually_async(each_counted_once)
            assert await served_by("first")
    async with running(await shell_of(cluster, namespace, "third")) as third:
        await eventually_async(partial(served_by, "third"))
        assert third._releases is not None
        assert third._releases.jobs == {}
        assert await losses() == (len(pods), len(pods))
