"""Fixtures of the tests that need a real API server."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubernetes.aio.client.configuration import Configuration

from e2e.cluster import Cluster
from longboat_operator.kube.client import KubeClient
from longboat_operator.kube.config import load_configuration
from longboat_operator.kube.errors import AlreadyExistsError
from longboat_operator.kube.resources import CLUSTER_RL_RUNTIME, RL_JOB, RL_RUNTIME, Resource
from longboat_operator.kube.transport import Transport

CRD = Resource("CustomResourceDefinition", "customresourcedefinitions", "apiextensions.k8s.io", namespaced=False)
NAMESPACE = Resource("Namespace", "namespaces", namespaced=False)
CRDS = Path(__file__).parents[2] / "crds"


@pytest.fixture
async def configuration(cluster: Cluster) -> Configuration:
    """The administrator's way to the test cluster."""
    return await load_configuration(cluster.kubeconfig)


@pytest.fixture
async def transport(configuration: Configuration) -> AsyncIterator[Transport]:
    """Patient: the machine may be busy."""
    made = Transport(configuration, timeout_seconds=30.0)
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
    await until(lambda: _served(client, wanted))
    return client


@pytest.fixture
async def namespace(admin: KubeClient) -> AsyncIterator[str]:
    """An empty namespace of the test's own."""
    name = f"shell-{uuid.uuid4().hex[:8]}"
    created = await admin.create(NAMESPACE, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    yield name
    await admin.delete(NAMESPACE, "", name, created["metadata"]["uid"])


async def until(true: Callable[[], Any], seconds: float = 300.0) -> Any:
    """Waits for a condition (plain or awaitable) and gives what it gave; fails after `seconds`."""
    async with asyncio.timeout(seconds):
        while True:
            found = true()
            if isinstance(found, Awaitable):
                found = await found
            if found:
                return found
            await asyncio.sleep(0.05)


async def _served(client: KubeClient, wanted: set[str]) -> bool:
    return wanted <= await client.served(RL_JOB.group, RL_JOB.version)
