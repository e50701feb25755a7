"""How many requests a job costs, by the real plan on a real API server; the test plays the scheduler's and the kubelets' part."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from longboat_operator.kube.client import MERGE_PATCH, KubeClient
from longboat_operator.kube.resources import POD, RL_JOB, RL_RUNTIME
from longboat_operator.kube.transport import Request, Transport
from longboat_operator.model import LABEL_JOB, JobKey
from longboat_operator.shell import Shell
from tests.operator_shell.small_plan import manifest
from tests.operator_shell.test_reward_cpus_live import bind, fake_node
from tests.operator_shell.test_surroundings_live import Bench, bench
from tests.support.waiting import eventually_async

__all__ = ["bench", "fake_node"]

pytestmark = pytest.mark.cluster

PODS = 6
# Six pods, nine objects around them, what the status says at four times, and one Event.
MOST_REQUESTS = 20


@pytest.fixture
def sent(admin: KubeClient, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Returns what the operator has sent so far, but for lists, watches and discovery."""
    requests: list[str] = []
    send = Transport.send

    async def note(transport: Transport, request: Request) -> Any:
        if transport is not admin._transport and request.verb != "list" and request.resource != "apis":
            body = request.body or {}
            name = body.get("metadata", {}).get("name", request.path)
            dry = " (dry run)" if "dryRun" in request.query else ""
            requests.append(f"{request.verb} {request.resource} {name}{dry} {body.get('message', '')}")
        return await send(transport, request)

    monkeypatch.setattr(Transport, "send", note)
    return requests


@contextmanager
def held_back(shell: Shell) -> Iterator[None]:
    """Lets no plan begin meanwhile, so that one plan sees all that has happened."""
    bucket = shell._queue._bucket
    bucket.close_until(math.inf)
    yield
    bucket._closed_until = -math.inf
    shell._queue._wake()


async def bring_up(bench: Bench, shell: Shell, node: str, name: str) -> None:
    """Creates a job of six pods, and returns once they are ready and nothing is left to do."""
    body = manifest(bench.namespace, name)
    body["spec"] |= {"runtimeRef": {"kind": "RLRuntime", "name": "unscheduled"}, "trainer": {"replicas": 2}}
    body["spec"]["rollout"]["replicas"] = 2
    await bench.admin.create(RL_JOB, body)

    async def pods() -> list[str]:
        return [pod for pod, found in (await bench.all(POD)).items() if found["metadata"]["labels"][LABEL_JOB] == name]

    async def all_pods_and_idle() -> bool:
        return len(await pods()) == PODS and shell._queue.idle(1.0)

    async def ready_and_idle() -> bool:
        return (await bench.condition(name, "RolesReady")).get("status") == "True" and shell._queue.idle(1.0)

    async def all_seen_ready() -> bool:
        seen = shell._cache.children(JobKey(bench.namespace, name))[POD.kind].values()
        return len(seen) == PODS and all(pod["status"].get("phase") == "Running" for pod in seen)

    await eventually_async(all_pods_and_idle)
    condition = {"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}
    patch = {"status": {"phase": "Running", "conditions": [condition]}}
    with held_back(shell):
        await bind(bench, node, *await pods())
        for pod in await pods():
            await bench.admin.patch(POD, bench.namespace, pod, patch, MERGE_PATCH, subresource="status")
        await eventually_async(all_seen_ready)
    await eventually_async(ready_and_idle)


async def test_a_job_of_six_pods_costs_few_requests(bench: Bench, fake_node: str, sent: list[str]) -> None:
    """Of the second job of its kind: the first one's pods are checked by dry runs."""
    template = {"spec": {"schedulerName": "nobody", "tolerations": [{"operator": "Exists"}]}}
    await bench.put(RL_RUNTIME, "unscheduled", spec={"image": "localhost/none:1", "common": {"template": template}})
    async with bench.operator() as shell:
        await bring_up(bench, shell, fake_node, "first")
        first = [*sent]
        sent.clear()
        await bring_up(bench, shell, fake_node, "second")
        second = [*sent]
    assert len([each for each in first if "(dry run)" in each]) == 5, "\n".join(first)
    assert len(second) <= MOST_REQUESTS, "\n".join(second)
