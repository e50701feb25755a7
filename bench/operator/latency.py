"""From a driver's demand to the grant that a watch reads: the operator as a process, on a real API server."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import yaml

from e2e.cluster import Cluster
from e2e.cluster import cluster as clusters
from longboat_operator.kube.client import KubeClient
from longboat_operator.kube.config import load_configuration
from longboat_operator.kube.errors import AlreadyExistsError
from longboat_operator.kube.resources import CLUSTER_RL_RUNTIME, RL_JOB, RL_RUNTIME, Resource
from longboat_operator.kube.transport import Transport
from tests.operator_plan.simulated_cluster import spec_of

NAMESPACE = "bench-operator"
REPLICAS = 3
CRD = Resource("CustomResourceDefinition", "customresourcedefinitions", "apiextensions.k8s.io", namespaced=False)
SPACE = Resource("Namespace", "namespaces", namespaced=False)
CRDS = Path(__file__).parents[2] / "crds"
POLL_SECONDS = 0.2


def latency(jobs: int, demands: int, period_seconds: float, running: str | None = None) -> dict[str, Any]:
    """Measures `demands` of so many jobs, one every `period_seconds`: seconds until each was read as answered, and the operator's CPU.

    It uses the test cluster named `running`, or one of its own if that is None. Raises RuntimeError if the named one isn't up.
    No node takes the jobs' pods, so no kubelet has a part in it.
    """
    names = [f"job-{number}" for number in range(jobs)]
    if running is None:
        with clusters.own("bench-operator", nodes=1) as cluster:
            return asyncio.run(_run(cluster, names, demands, period_seconds))
    running_cluster = Cluster.find(running)
    if running_cluster is None:
        raise RuntimeError(f"--cluster {running}: it is not up")
    return asyncio.run(_run(running_cluster, names, demands, period_seconds))


async def _run(cluster: Cluster, names: list[str], demands: int, period_seconds: float) -> dict[str, Any]:
    transport = Transport(await load_configuration(cluster.kubeconfig), timeout_seconds=60.0)
    client = KubeClient(transport, lambda: None)
    space: dict[str, Any] = {}
    try:
        space = await _prepare(client, names)
        async with _operator(cluster) as process:
            await _each(client, names, lambda status: status.get("allocation", {}).get("grant"))
            for name in names:
                await _drive(client, name, {"demand": {"incarnationRequest": "token"}})
            await _each(client, names, lambda status: status.get("allocation", {}).get("incarnation"))
            return await _measure(client, names, demands, period_seconds, process.pid)
    finally:
        if space:
            await client.delete(SPACE, None, NAMESPACE, space["metadata"]["uid"])
        await transport.close()


async def _measure(
    client: KubeClient, names: list[str], demands: int, period_seconds: float, operator: int
) -> dict[str, Any]:
    sent_at: dict[tuple[str, int], float] = {}
    answered: dict[tuple[str, int], float] = {}
    listed = [page async for page in client.list_pages(RL_JOB, NAMESPACE)]
    async with client.watch(RL_JOB, NAMESPACE, "", listed[-1].resource_version) as events:
        reader = asyncio.create_task(_read(events, answered))
        cpu, began = _cpu_seconds(operator), time.monotonic()
        for number in range(demands):
            await asyncio.sleep(max(0.0, began + number * period_seconds - time.monotonic()))
            name, turn = names[number % len(names)], number // len(names) + 1
            rollout = {
                "incarnation": 1,
                "number": turn,
                "replicas": REPLICAS - turn % 2,
                "reason": "as many as it can use",
            }
            sent_at[name, turn] = time.monotonic()
            await _drive(client, name, {"demand": {"incarnationRequest": "token", "rollout": rollout}})
        while sent_at.keys() - answered.keys():  # noqa: ASYNC110
            await asyncio.sleep(POLL_SECONDS)
        used = _cpu_seconds(operator) - cpu
        reader.cancel()
        await asyncio.gather(reader, return_exceptions=True)
    return {
        "seconds": [round(answered[key] - sent, 4) for key, sent in sent_at.items()],
        "operator_cpu_ms": 1e3 * used / demands,
        "wall_seconds": time.monotonic() - began,
    }


async def _read(events: Any, answered: dict[tuple[str, int], float]) -> None:
    """Notes when each answer comes. The answer to a later demand is none to an earlier one, so none may be skipped."""
    async for event in events:
        status = event.object.get("status") or {}
        number = ((status.get("allocation") or {}).get("grant") or {}).get("rollout", {}).get("answers")
        if event.type == "MODIFIED" and number is not None:
            answered.setdefault((event.object["metadata"]["name"], number), time.monotonic())


async def _prepare(client: KubeClient, names: list[str]) -> dict[str, Any]:
    for file in sorted(CRDS.glob("*.yaml")):
        try:
            await client.create(CRD, yaml.safe_load(file.read_text()))
        except AlreadyExistsError:
            continue
    wanted = {resource.plural for resource in (RL_JOB, RL_RUNTIME, CLUSTER_RL_RUNTIME)}
    while not wanted <= await client.served(RL_JOB.group, RL_JOB.version):  # noqa: ASYNC110
        await asyncio.sleep(POLL_SECONDS)
    space = await client.create(SPACE, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
    template = {"spec": {"nodeSelector": {"bench.longboat.dev/none": "none"}}}
    await _create(client, RL_RUNTIME, "nowhere", {"image": "localhost/none:1", "common": {"template": template}})
    reference = {"kind": "RLRuntime", "name": "nowhere"}
    for name in names:
        await _create(client, RL_JOB, name, {**spec_of(rollout={"replicas": REPLICAS}), "runtimeRef": reference})
    return space


async def _create(client: KubeClient, resource: Resource, name: str, spec: dict[str, Any]) -> None:
    metadata = {"namespace": NAMESPACE, "name": name}
    body = {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": metadata, "spec": spec}
    await client.create(resource, body)


async def _drive(client: KubeClient, name: str, status: dict[str, Any]) -> None:
    """Applies `status` as the whole of the driver's part."""
    metadata = {"namespace": NAMESPACE, "name": name}
    body = {"apiVersion": RL_JOB.api_version, "kind": RL_JOB.kind, "metadata": metadata, "status": status}
    await client.apply(RL_JOB, body, subresource="status", manager="longboat-driver")


async def _each(client: KubeClient, names: list[str], true: Any) -> None:
    """Returns once it is true of every job's status."""
    for name in names:
        while not true((await client.get(RL_JOB, NAMESPACE, name)).get("status") or {}):  # noqa: ASYNC110
            await asyncio.sleep(POLL_SECONDS)


@asynccontextmanager
async def _operator(cluster: Cluster) -> AsyncIterator[asyncio.subprocess.Process]:
    program = [sys.executable, "-m", "longboat_operator.cli", "run", f"--kubeconfig={cluster.kubeconfig}"]
    options = ["--no-leader-election", f"--namespace={NAMESPACE}", "--health-port=18081", "--metrics-port=18080"]
    process = await asyncio.create_subprocess_exec(*program, *options, stderr=asyncio.subprocess.DEVNULL)
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        await process.wait()


def _cpu_seconds(pid: int) -> float:
    """Reads the user and system time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
