"""Fixtures of the tests that need a real API server."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import yaml
from kubernetes.aio.client.configuration import Configuration

from e2e.cluster import Cluster
from longboat_operator import shell
from longboat_operator.controller import MakePlan, Observe
from longboat_operator.kube import client as kube_client
from longboat_operator.kube.client import KubeClient
from longboat_operator.kube.config import load_configuration
from longboat_operator.kube.errors import AlreadyExistsError
from longboat_operator.kube.resources import CLUSTER_RL_RUNTIME, RL_JOB, RL_RUNTIME, Resource
from longboat_operator.kube.transport import Transport
from longboat_operator.shell import LeaseOptions, Options, Shell
from tests.crds.manifests import changed
from tests.operator_shell.gateway import Gateway, open_gateway
from tests.support.waiting import DEADLINE_SECONDS, eventually_async

CRD = Resource("CustomResourceDefinition", "customresourcedefinitions", "apiextensions.k8s.io", namespaced=False)
NAMESPACE = Resource("Namespace", "namespaces", namespaced=False)
CRDS = Path(__file__).parents[2] / "crds"
LEASE_SECONDS = 2 * DEADLINE_SECONDS


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keeps lists and ending tasks from timing out on a machine that stalls."""
    monkeypatch.setattr(kube_client, "LIST_TIMEOUT_SECONDS", DEADLINE_SECONDS)
    monkeypatch.setattr(shell, "_END_SECONDS", DEADLINE_SECONDS)


def lease(namespace: str) -> LeaseOptions:
    """Returns options of a lease so long that a stalled operator keeps it."""
    return LeaseOptions(namespace, "operator", LEASE_SECONDS)


def open_shell(configuration: Configuration, options: Options, observe: Observe, plan: MakePlan) -> Shell:
    """Makes a shell that waits for the API server's answers however long they take."""
    made = Shell(configuration, options, observe, plan)
    made._transport.timeout_seconds = DEADLINE_SECONDS
    return made


@pytest.fixture
async def configuration(cluster: Cluster) -> Configuration:
    """The administrator's way to the test cluster."""
    return await load_configuration(cluster.kubeconfig)


@pytest.fixture
async def transport(configuration: Configuration) -> AsyncIterator[Transport]:
    made = Transport(configuration, DEADLINE_SECONDS)
    yield made
    await made.close()


@pytest.fixture
async def admin(transport: Transport) -> KubeClient:
    """A client that may do anything, on a cluster that has Longboat's CRDs."""
    client = KubeClient(transport, lambda: None)
    for file in sorted(CRDS.glob("*.yaml")):
        try:
            await client.create(CRD, yaml.safe_load(file.read_text()))
        except AlreadyExistsError:
            continue
    wanted = {resource.plural for resource in (RL_JOB, RL_RUNTIME, CLUSTER_RL_RUNTIME)}
    await eventually_async(lambda: _served(client, wanted))
    return client


@asynccontextmanager
async def empty_namespace(admin: KubeClient) -> AsyncIterator[str]:
    name = f"shell-{uuid.uuid4().hex[:8]}"
    created = await admin.create(NAMESPACE, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    yield name
    await admin.delete(NAMESPACE, "", name, created["metadata"]["uid"])


@pytest.fixture
async def namespace(admin: KubeClient) -> AsyncIterator[str]:
    """An empty namespace of the test's own."""
    async with empty_namespace(admin) as name:
        yield name


@pytest.fixture
async def other(admin: KubeClient) -> AsyncIterator[str]:
    """Another empty namespace."""
    async with empty_namespace(admin) as name:
        yield name


async def create_runtime(admin: KubeClient, namespace: str) -> None:
    """Creates the runtime template `nowhere`, whose pods no node takes."""
    template = {"spec": {"nodeSelector": {"test.longboat.dev/none": "none"}}}
    spec = {"image": "localhost/none:1", "common": {"template": template}}
    metadata = {"namespace": namespace, "name": "nowhere"}
    await admin.create(
        RL_RUNTIME, {"apiVersion": RL_RUNTIME.api_version, "kind": RL_RUNTIME.kind, "metadata": metadata, "spec": spec}
    )


async def create_job(admin: KubeClient, namespace: str) -> None:
    """Creates job `x` with `create_runtime`."""
    await create_runtime(admin, namespace)
    reference = {"spec.runtimeRef": {"kind": RL_RUNTIME.kind, "name": "nowhere"}}
    await admin.create(RL_JOB, changed({"metadata.name": "x", "metadata.namespace": namespace, **reference}))


async def _served(client: KubeClient, wanted: set[str]) -> bool:
    return wanted <= await client.served(RL_JOB.group, RL_JOB.version)


@asynccontextmanager
async def running(shell: Shell) -> AsyncIterator[Shell]:
    """Runs a shell for the block."""
    task = asyncio.create_task(shell.run())
    try:
        yield shell
    finally:
        shell.stop()
        await task


@pytest.fixture
async def gateway(transport: Transport) -> AsyncIterator[tuple[Gateway, Configuration]]:
    """A gateway to the API server, and the configuration of its clients."""
    async with open_gateway(transport) as opened:
        yield opened
