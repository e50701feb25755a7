"""A trainer in two pods of two ranks: nodes of one Ray cluster with the names of pods."""

from __future__ import annotations

import asyncio
import operator
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray
from ray.cluster_utils import Cluster

from longboat_runtime.agent.ray_node import bare_nodes
from longboat_runtime.ray_nodes import POD_LABEL, ROLE_LABEL, TRAINER_RESOURCE
from longboat_runtime.store.actor import start_store
from longboat_runtime.store.client import StoreClient
from longboat_runtime.trainer.actor import TrainerActor
from longboat_runtime.trainer.errors import TrainerLost
from longboat_runtime.trainer.group import RayTrainerGroup
from tests.support.tiny_model import build_tiny_model
from tests.support.waiting import eventually
from tests.trainer.trainer_world import make_request, make_samples, make_spec

pytestmark = pytest.mark.extended

SAMPLES = make_samples(8)
STORE_BYTES = 80_000_000


class Pods:
    """The cluster of a job, with a node for each trainer pod, by the pod's name."""

    def __init__(self) -> None:
        with bare_nodes():
            self._cluster = Cluster(
                initialize_head=True,
                head_node_args={
                    "num_cpus": 0,
                    "resources": {"longboat-store": 1},
                    "object_store_memory": STORE_BYTES,
                    # A node that says nothing for so long is dead.
                    "_system_config": {"health_check_period_ms": 1000, "health_check_timeout_ms": 1000},
                },
            )
        self.nodes: dict[str, Any] = {}

    @property
    def address(self) -> str:
        return str(self._cluster.address)

    def start(self, place: int, attempt: int = 0) -> str:
        """Starts a pod; returns the id of its node."""
        name = f"job-trainer-{place}-a{attempt}"
        with bare_nodes():
            self.nodes[name] = self._cluster.add_node(
                num_cpus=0,
                resources={TRAINER_RESOURCE: 2},
                labels={ROLE_LABEL: "trainer", POD_LABEL: name},
                object_store_memory=STORE_BYTES,
            )
        return self.id_of(name)

    def kill(self, place: int, attempt: int = 0) -> None:
        """Ends a pod as the loss of its node does, without waiting until Ray has noticed."""
        node = self.nodes[f"job-trainer-{place}-a{attempt}"]
        node.kill_raylet(check_alive=False)
        self._cluster.worker_nodes.discard(node)

    def id_of(self, name: str) -> str:
        [node_id] = [node["NodeID"] for node in ray.nodes() if node["Labels"].get(POD_LABEL) == name]
        return str(node_id)

    def shutdown(self) -> None:
        self._cluster.shutdown()


@pytest.fixture(scope="module")
def pods() -> Iterator[Pods]:
    cluster = Pods()
    ray.init(address=cluster.address, log_to_driver=False)
    yield cluster
    ray.shutdown()
    cluster.shutdown()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_tiny_model(tmp_path_factory.mktemp("model"), hidden=64)


class PlacedActor(TrainerActor):
    def place(self) -> str:
        return str(ray.get_runtime_context().get_node_id())


async def places(group: RayTrainerGroup) -> list[str]:
    """The nodes of the ranks, rank 0 first."""
    return await group._call("place")


async def test_ranks_are_in_their_pods_and_start_again_there_or_in_the_pods_that_replace_them(
    pods: Pods, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
    monkeypatch.setattr("longboat_runtime.trainer.group.TrainerActor", PlacedActor)
    monkeypatch.setattr("longboat_runtime.trainer.group.ANSWER_SECONDS", 0.5)
    store = StoreClient(start_store())
    await store.put(SAMPLES)
    spec = make_spec(model, trainer={"replicas": 2, "devicesPerPod": 2, "replicateDegree": 2})
    group = RayTrainerGroup(spec, store)

    second = pods.start(1)
    loading = asyncio.create_task(group.load())
    first = pods.start(0)
    await loading
    assert await places(group) == [first, first, second, second]
    expected = await group.train(make_request(SAMPLES))

    ray.kill(group._actors[3])
    with pytest.raises(TrainerLost):
        await group.train(make_request(SAMPLES, step=2))
    await group.load()
    assert await places(group) == [first, first, second, second]
    again = await group.train(make_request(SAMPLES))
    assert again.metrics["actor/grad_norm"] == expected.metrics["actor/grad_norm"]

    pods.kill(1)
    newer = pods.start(1, attempt=1)
    # Until then its ranks may live on, and finish a step.
    await asyncio.to_thread(eventually, lambda: living(second), operator.not_)
    with pytest.raises(TrainerLost):
        await group.train(make_request(SAMPLES, step=2))
    await group.load()
    assert await places(group) == [first, first, newer, newer]

    # Ray doesn't know yet that this pod is gone.
    pods.kill(0)
    loading = asyncio.create_task(group.load())
    await asyncio.to_thread(eventually, lambda: living(first), operator.not_)
    assert pods.id_of("job-trainer-0-a0") == first, "Ray lists dead nodes with their labels"
    newest = pods.start(0, attempt=1)
    await loading
    assert await places(group) == [newest, newest, newer, newer]
    assert (await group.train(make_request(SAMPLES))).metrics["actor/grad_norm"] == expected.metrics["actor/grad_norm"]
    await group.close()


def living(node_id: str) -> bool:
    """Whether the node lives, as far as Ray knows."""
    return any(node["Alive"] for node in ray.nodes() if node["NodeID"] == node_id)
