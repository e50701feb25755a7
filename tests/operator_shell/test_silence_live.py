"""Requests that fail for long, and what finalizers keep, by the real plan on a real API server. No node takes the pods."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from aiohttp import web
from kubernetes.aio.client.configuration import Configuration

from e2e.cluster import Cluster
from longboat_operator import rejections
from longboat_operator.kube.client import MERGE_PATCH, KubeClient
from longboat_operator.kube.errors import ServerError
from longboat_operator.kube.resources import EVENT, POD, RL_JOB, Resource
from longboat_operator.observe import observe
from longboat_operator.planner import plan
from longboat_operator.shell import Options
from tests.operator_shell.conftest import create_runtime, open_shell, running
from tests.operator_shell.gateway import Gateway
from tests.operator_shell.test_surroundings_live import Bench, served
from tests.support.ports import free_port
from tests.support.waiting import eventually_async

pytestmark = pytest.mark.cluster

WEBHOOKS = Resource(
    "ValidatingWebhookConfiguration",
    "validatingwebhookconfigurations",
    "admissionregistration.k8s.io",
    namespaced=False,
)
HOLD = "backup.example.com/hold"


@pytest.fixture(autouse=True)
def _impatience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rejections, "LASTING_SECONDS", 0.5)


@pytest.fixture
async def bench(cluster: Cluster, admin: KubeClient, namespace: str) -> Bench:
    await create_runtime(admin, namespace)
    return Bench(cluster, admin, namespace)


@asynccontextmanager
async def webhook_down(bench: Bench, operation: str) -> AsyncIterator[None]:
    """For the block, the webhook of a policy engine that doesn't run is asked about the namespace's pods."""
    name = f"down-{uuid.uuid4().hex[:8]}"
    webhook = {
        "name": "pods.policy.example.com",
        "admissionReviewVersions": ["v1"],
        "sideEffects": "None",
        "failurePolicy": "Fail",
        "timeoutSeconds": 2,
        "clientConfig": {"url": f"https://127.0.0.1:{free_port()}"},
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": bench.namespace}},
        "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": [operation], "resources": ["pods"]}],
    }
    body = {
        "apiVersion": WEBHOOKS.api_version,
        "kind": WEBHOOKS.kind,
        "metadata": {"name": name},
        "webhooks": [webhook],
    }
    made = await bench.admin.create(WEBHOOKS, body)
    try:
        yield
    finally:
        await bench.admin.delete(WEBHOOKS, "", name, made["metadata"]["uid"])


async def pods_are_refused(bench: Bench) -> bool:
    spec = {"containers": [{"name": "main", "image": "localhost/none:1"}]}
    metadata = {"namespace": bench.namespace, "name": "probe"}
    try:
        await bench.admin.create(
            POD, {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}, dry_run=True
        )
    except ServerError:
        return True
    return False


async def phase(bench: Bench, name: str) -> str:
    return str((await bench.get(RL_JOB, name)).get("status", {}).get("phase"))


def is_in(bench: Bench, name: str, wanted: str) -> Callable[[], Awaitable[bool]]:
    async def check() -> bool:
        return await phase(bench, name) == wanted

    return check


async def events(bench: Bench, reason: str) -> list[str]:
    return [event["message"] for event in (await bench.all(EVENT)).values() if event["reason"] == reason]


async def names(bench: Bench) -> list[str]:
    return sorted(await bench.all(POD))


async def set_finalizers(bench: Bench, resource: Resource, name: str, *finalizers: str) -> None:
    body = {"metadata": {"finalizers": [*finalizers]}}
    await bench.admin.patch(resource, bench.namespace, name, body, MERGE_PATCH)


async def release(bench: Bench) -> None:
    """Takes all finalizers off pods, so that the namespace can be deleted."""
    for name in await names(bench):
        await set_finalizers(bench, POD, name)


async def test_a_webhook_that_is_down_is_told_in_its_servers_words_until_it_is_back(bench: Bench) -> None:
    async with bench.operator():
        async with webhook_down(bench, "CREATE"):
            await eventually_async(lambda: pods_are_refused(bench))
            await bench.submit("x")
            await eventually_async(bench.says("x", "RequestFailed"))
            message = (await bench.condition("x", "Scheduled"))["message"]
            assert message.startswith(f"Pod x-driver-0-a0: {rejections.UNANSWERED}: Internal error occurred: ")
            assert 'failed calling webhook "pods.policy.example.com"' in message
            job = await bench.get(RL_JOB, "x")
            assert (job["status"]["phase"], job["status"]["reason"]) == ("Pending", "RequestFailed")
            assert await eventually_async(lambda: events(bench, "RequestFailed")) == [message]
        await eventually_async(bench.has_pods("x", 4))
        await eventually_async(lambda: is_told_no_more(bench))


async def is_told_no_more(bench: Bench) -> bool:
    return (await bench.condition("x", "Scheduled"))["reason"] != "RequestFailed"


@pytest.mark.parametrize("code", [429, 503])
async def test_answers_that_are_not_final_cost_no_status_write_each(
    admin: KubeClient, namespace: str, bench: Bench, gateway: tuple[Gateway, Configuration], code: int
) -> None:
    busy, configuration = gateway
    seen = {"pods": 0, "status": 0}

    def status(request: web.Request) -> int | None:
        seen["status"] += request.method == "PATCH" and request.path.endswith("/rljobs/x/status")
        refused = request.method == "POST" and request.path.endswith("/pods")
        seen["pods"] += refused
        return code if refused else None

    busy.refuse(status)
    options = Options((namespace,), None, free_port(), free_port())
    async with running(open_shell(configuration, options, observe, plan)):
        await bench.submit("x")
        await eventually_async(bench.says("x", "RequestFailed"))
        assert f"the test answers {code}" in (await bench.condition("x", "Scheduled"))["message"]
        before = dict(seen)
        await eventually_async(lambda: seen["pods"] >= before["pods"] + 3)
        assert seen["status"] <= before["status"] + 1
        busy.mend()
        await eventually_async(bench.has_pods("x", 4))


@served
async def test_a_webhook_that_is_down_for_deletions_is_told_while_a_job_is_suspended(bench: Bench) -> None:
    await bench.submit("x")
    await eventually_async(bench.has_pods("x", 4))
    async with webhook_down(bench, "DELETE"):
        await bench.edit("x", suspend=True)

        async def told() -> str:
            return str((await bench.condition("x", "Suspended")).get("message"))

        await eventually_async(told, lambda message: 'failed calling webhook "pods.policy.example.com"' in message)
    await eventually_async(is_in(bench, "x", "Suspended"))


@served
async def test_pods_that_finalizers_keep_block_neither_their_place_nor_a_suspension(bench: Bench) -> None:
    await bench.submit("x")
    await eventually_async(bench.has_pods("x", 4))
    for name in await names(bench):
        await set_finalizers(bench, POD, name, HOLD)
    await bench.edit("x", failurePolicy={"backoffSeconds": 0})
    await bench.delete(POD, "x-trainer-0-a0")
    await eventually_async(lambda: names(bench), lambda found: "x-trainer-0-a1" in found)
    assert "x-trainer-0-a0" in await names(bench)
    words = f"pod x-trainer-0-a0 has ended, but its finalizers block its removal: {HOLD}"

    async def told(kind: str) -> str:
        return str((await bench.condition("x", kind)).get("message"))

    await eventually_async(lambda: told("RolesReady"), lambda message: words in message)
    await bench.edit("x", suspend=True)
    await eventually_async(is_in(bench, "x", "Suspended"))
    assert HOLD in await told("Suspended")
    await bench.edit("x", suspend=False)
    await eventually_async(lambda: names(bench), lambda found: "x-trainer-0-a2" in found)
    await release(bench)
    await eventually_async(lambda: told("RolesReady"), lambda message: HOLD not in message)


@served
async def test_a_deleted_job_that_a_finalizer_keeps_releases_its_pods_and_says_so(bench: Bench) -> None:
    await bench.submit("x")
    await eventually_async(bench.has_pods("x", 4))
    await set_finalizers(bench, RL_JOB, "x", HOLD)
    await set_finalizers(bench, POD, "x-trainer-0-a0", HOLD)
    await bench.delete(RL_JOB, "x")
    await eventually_async(is_in(bench, "x", "Terminating"))
    await eventually_async(lambda: names(bench), ["x-trainer-0-a0"].__eq__)

    async def told() -> str:
        return str((await bench.condition("x", "Running")).get("message"))

    await eventually_async(told, lambda message: message.count(HOLD) == 2 and "x-trainer-0-a0" in message)
    assert (await bench.get(RL_JOB, "x"))["status"]["reason"] == "JobDeleted"
    assert await events(bench, "Terminating")
    await release(bench)
    await eventually_async(bench.has_pods("x", 0))
    await eventually_async(told, lambda message: message.count(HOLD) == 1)
    await set_finalizers(bench, RL_JOB, "x")
    await eventually_async(bench.is_gone(RL_JOB, "x"))


@served
async def test_pods_of_an_orphaning_deletion_live(bench: Bench) -> None:
    await bench.submit("x")
    await eventually_async(bench.has_pods("x", 4))
    await set_finalizers(bench, RL_JOB, "x", HOLD)
    arguments = ("-n", bench.namespace, "delete", "rljob", "x", "--cascade=orphan", "--wait=false")
    await asyncio.to_thread(bench.cluster.kubectl, *arguments)

    async def no_longer_owned() -> bool:
        return not any(pod["metadata"].get("ownerReferences") for pod in (await bench.all(POD)).values())

    await eventually_async(no_longer_owned)
    await eventually_async(is_in(bench, "x", "Terminating"))
    assert len(await names(bench)) == 4
    assert not any("deletionTimestamp" in pod["metadata"] for pod in (await bench.all(POD)).values())
    await set_finalizers(bench, RL_JOB, "x")
