"""The cache follows a real API server through cut connections, compaction and lost events."""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import urlsplit

import pytest

from e2e.cluster import Cluster
from e2e.cluster.components import ETCD_URL
from longboat_operator.kube.client import KubeClient
from longboat_operator.kube.clock import ServerClock
from longboat_operator.kube.config import load_configuration
from longboat_operator.kube.resources import BY_KIND, EVENT, SERVICE, Resource
from longboat_operator.kube.transport import Transport
from longboat_operator.metrics import RELISTS
from longboat_operator.model import LABEL_JOB
from longboat_operator.watch.cache import Cache, Change, ObjectKey, Source
from longboat_operator.watch.feed import Feed
from longboat_operator.watch.freshness import Freshness
from longboat_operator.watch.informer import Informer
from longboat_operator.watch.repair import Repair
from tests.driver.cuttable_link import CuttableLink
from tests.support.waiting import DEADLINE_SECONDS, eventually_async

pytestmark = pytest.mark.cluster


class Watched:
    """Watches one kind in one namespace through a link."""

    def __init__(self, client: KubeClient, resource: Resource, namespace: str, link: CuttableLink) -> None:
        self.link = link
        self.source = Source(resource.kind, namespace)
        self.cache = Cache()
        self.changes: list[Change] = []
        self.freshness = Freshness([self.source], bookmarked=[self.source])
        self.feed = Feed(self.cache, self.freshness, ServerClock(), self.changes.append)
        self.informer = Informer(client, resource, namespace, LABEL_JOB, self.feed, asyncio.Semaphore())

    def names(self) -> set[str]:
        return {key.name for key in self.cache.versions(self.source)}


@pytest.fixture
async def watched(
    request: pytest.FixtureRequest, cluster: Cluster, admin: KubeClient, namespace: str
) -> AsyncIterator[Watched]:
    """Services, or what the test's parameter says."""
    configuration = await load_configuration(cluster.kubeconfig)
    address = urlsplit(configuration.host)
    assert address.hostname is not None
    assert address.port is not None
    link = CuttableLink(address.hostname, address.port)
    await link.start()
    configuration.host = f"https://127.0.0.1:{link.port}"
    configuration.tls_server_name = address.hostname
    transport = Transport(configuration, DEADLINE_SECONDS)
    resource = getattr(request, "param", SERVICE)
    watched = Watched(KubeClient(transport, lambda: None), resource, namespace, link)
    task = asyncio.create_task(watched.informer.run())
    await eventually_async(lambda: not watched.freshness.unlisted)
    yield watched
    task.cancel()
    await link.stop()
    await transport.close()


async def create(admin: KubeClient, namespace: str, name: str, job: str | None = "x") -> dict[str, Any]:
    metadata = {"namespace": namespace, "name": name, "labels": {LABEL_JOB: job} if job else {}}
    spec = {"clusterIP": "None", "ports": [{"port": 1}]}
    return await admin.create(SERVICE, {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec})


async def create_event(admin: KubeClient, namespace: str, name: str) -> dict[str, Any]:
    metadata = {"namespace": namespace, "name": name, "labels": {LABEL_JOB: "x"}}
    involved = {"kind": "RLJob", "namespace": namespace, "name": "x"}
    body = {"apiVersion": "v1", "kind": "Event", "metadata": metadata, "involvedObject": involved}
    return await admin.create(EVENT, body)


async def delete(admin: KubeClient, obj: dict[str, Any]) -> None:
    resource, metadata = BY_KIND[obj["kind"]], obj["metadata"]
    await admin.delete(resource, metadata["namespace"], metadata["name"], metadata["uid"])


def compact(cluster: Cluster, revision: int) -> None:
    """Makes etcd forget everything before a revision, as the API server lets it do every five minutes."""
    address = f"{ETCD_URL}/v3/kv/compaction"
    inside = ["nsenter", "--target", str(cluster.namespaces.pid), "--net"]
    body = json.dumps({"revision": str(revision), "physical": True})
    subprocess.run([*inside, "curl", "--fail", "--silent", "--data", body, address], check=True, capture_output=True)


def relists(kind: str = "Service") -> float:
    return RELISTS.labels(kind)._value.get()


async def test_only_labelled_objects_are_seen_and_trimmed(admin: KubeClient, namespace: str, watched: Watched) -> None:
    await create(admin, namespace, "stranger", job=None)
    mine = await create(admin, namespace, "mine")
    await eventually_async(lambda: watched.names() == {"mine"})
    held = watched.cache.get(ObjectKey("Service", namespace, "mine"))
    assert held is not None
    assert held["metadata"]["uid"] == mine["metadata"]["uid"]
    assert "managedFields" not in held["metadata"]
    await delete(admin, mine)
    await eventually_async(lambda: watched.names() == set())


async def test_a_cut_watch_resumes_without_a_list(admin: KubeClient, namespace: str, watched: Watched) -> None:
    first, second = await create(admin, namespace, "first"), await create(admin, namespace, "second")
    await eventually_async(lambda: watched.names() == {"first", "second"})
    lists = relists()
    watched.link.cut()
    await delete(admin, first)
    await create(admin, namespace, "third")
    assert watched.names() == {"first", "second"}
    watched.link.mend()
    await eventually_async(lambda: watched.names() == {"second", "third"})
    assert relists() == lists
    assert [change.new is None for change in watched.changes] == [False, False, True, False]
    await delete(admin, second)


@pytest.mark.parametrize(
    "watched", [EVENT], indirect=True
)  # the API server watches them in etcd, without a cache between
async def test_a_deletion_behind_a_compaction_is_found_by_a_new_list(
    cluster: Cluster, admin: KubeClient, namespace: str, watched: Watched
) -> None:
    first = await create_event(admin, namespace, "first")
    await eventually_async(lambda: watched.names() == {"first"})
    lists = relists("Event")
    watched.link.cut()
    await delete(admin, first)
    second = await create_event(admin, namespace, "second")
    compact(cluster, int(second["metadata"]["resourceVersion"]))
    watched.link.mend()
    await eventually_async(lambda: watched.names() == {"second"})
    assert relists("Event") == lists + 1
    gone = [change for change in watched.changes if change.new is None]
    assert [change.key.name for change in gone] == ["first"]


async def test_a_re_list_repairs_a_lost_deletion_and_finds_out_a_dead_watch(
    admin: KubeClient, namespace: str, watched: Watched
) -> None:
    first = await create(admin, namespace, "first")
    await eventually_async(lambda: watched.names() == {"first"})
    watched.link.cut()  # from now on the watch reports nothing
    await delete(admin, first)
    second = await create(admin, namespace, "second")
    repair = Repair(admin, watched.cache, watched.feed, [], asyncio.Semaphore())
    difference = await repair.once(SERVICE, namespace, LABEL_JOB)
    assert {key.name for key in difference.vanished} == {"first"}
    assert watched.names() == set()
    assert watched.freshness.owes(watched.source)
    assert watched.freshness.problems(1e9) != []
    watched.link.mend()
    await eventually_async(lambda: watched.names() == {"second"})
    assert not watched.freshness.owes(watched.source)
    held = watched.cache.get(ObjectKey("Service", namespace, "second"))
    assert held is not None
    assert held["metadata"]["uid"] == second["metadata"]["uid"]
    assert (await repair.once(SERVICE, namespace, LABEL_JOB)).vanished == frozenset()
