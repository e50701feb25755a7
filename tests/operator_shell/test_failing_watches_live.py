"""Sources that can't be listed, or no longer be watched, hold up nothing but their namespaces, until they can."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from aiohttp import web
from kubernetes.aio.client.configuration import Configuration

from longboat_operator.kube.client import KubeClient
from longboat_operator.kube.resources import POD, RL_JOB
from longboat_operator.shell import Options, Shell
from longboat_operator.watch import informer
from tests.operator_shell import small_plan
from tests.operator_shell.conftest import lease, open_shell, running
from tests.operator_shell.gateway import Gateway
from tests.operator_shell.test_observability import get
from tests.support.ports import free_port
from tests.support.waiting import eventually_async

pytestmark = pytest.mark.cluster

Way = tuple[Gateway, Configuration]


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tries again after half a second at most."""
    monkeypatch.setattr(informer, "_LONGEST_WAIT_SECONDS", 0.5)


def shell_of(configuration: Configuration, *namespaces: str) -> Shell:
    options = Options(namespaces, lease(namespaces[0]), free_port(), free_port())
    return open_shell(configuration, options, small_plan.observe, small_plan.plan)


def about(namespace: str, plural: str, status: int) -> Callable[[web.Request], int | None]:
    """Refuses what is about a kind in a namespace."""
    ending = f"/namespaces/{namespace}/{plural}"
    return lambda request: status if request.path.endswith(ending) else None


def runs(admin: KubeClient, namespace: str, name: str) -> Callable[[], object]:
    async def check() -> bool:
        job = await admin.get(RL_JOB, namespace, name)
        return bool((job.get("status") or {}).get("phase") == "Running")

    return check


async def pods(admin: KubeClient, namespace: str) -> set[str]:
    return {item["metadata"]["name"] async for page in admin.list_pages(POD, namespace) for item in page.items}


def ready(shell: Shell, words: str = "ok\n") -> Callable[[], object]:
    async def check() -> bool:
        return await get(shell._options.health_port, "/readyz") == (200, words)

    return check


@pytest.mark.parametrize("plural", ["rljobs", "pods"])
async def test_a_namespace_that_refuses_from_the_start_is_named_and_holds_up_no_other(
    admin: KubeClient, namespace: str, other: str, gateway: Way, plural: str
) -> None:
    way, configuration = gateway
    way.refuse(about(other, plural, 403))
    await admin.create(RL_JOB, small_plan.manifest(namespace, "x"))
    await admin.create(RL_JOB, small_plan.manifest(other, "y"))
    async with running(shell_of(configuration, namespace, other)) as shell:
        await eventually_async(runs(admin, namespace, "x"))
        kind = {"rljobs": "RLJob", "pods": "Pod"}[plural]
        words = f"ok\n{kind} in namespace {other} can't be listed: the test answers 403\n"
        await eventually_async(ready(shell, words))
        _, metrics = await get(shell._options.metrics_port, "/metrics")
        assert f'longboat_watch_failing{{kind="{kind}",namespace="{other}"}} 1.0' in metrics
        assert await pods(admin, other) == set()
        way.mend()
        await eventually_async(runs(admin, other, "y"))
        await eventually_async(ready(shell))


@pytest.mark.parametrize(("plural", "status"), [("rljobs", 404), ("rlruntimes", 403), ("pods", 403)])
async def test_watches_that_are_refused_for_a_while_go_on_in_the_same_process(
    admin: KubeClient, namespace: str, other: str, gateway: Way, plural: str, status: int
) -> None:
    """A CRD that is deleted and made again, a RoleBinding that is revoked and given back."""
    way, configuration = gateway
    await admin.create(RL_JOB, small_plan.manifest(namespace, "before"))
    async with running(shell_of(configuration, namespace, other)) as shell:
        await eventually_async(runs(admin, namespace, "before"))
        way.refuse(about(namespace, plural, status))
        await eventually_async(lambda: not shell._freshness.serves(namespace))
        await admin.create(RL_JOB, small_plan.manifest(namespace, "meanwhile"))
        await admin.create(RL_JOB, small_plan.manifest(other, "elsewhere"))
        await eventually_async(runs(admin, other, "elsewhere"))
        assert not {name for name in await pods(admin, namespace) if name.startswith("meanwhile")}
        way.mend()
        await eventually_async(runs(admin, namespace, "meanwhile"))
        await eventually_async(ready(shell))
        before = await admin.get(RL_JOB, namespace, "before")
        await admin.delete(RL_JOB, namespace, "before", before["metadata"]["uid"])
        await eventually_async(lambda: shell._cache.job(small_plan.JobKey(namespace, "before")) is None)
