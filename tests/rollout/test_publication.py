"""Publications from a trainer's ranks to engines, on a real Ray: by broadcasts and through the host's memory."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import ray
from ray.cluster_utils import Cluster

from longboat_crds.job import RLJobSpec
from longboat_runtime.agent.ray_node import bare_nodes
from longboat_runtime.ray_nodes import POD_LABEL
from longboat_runtime.rollout import delivery, direct
from longboat_runtime.rollout.fleet import RayRolloutFleet
from longboat_runtime.rollout.member import Member, MemberState
from longboat_runtime.rollout.protocol import PublicationReport
from longboat_runtime.samples import FinishedSample
from longboat_runtime.store.actor import start_store
from longboat_runtime.store.client import StoreClient
from longboat_runtime.trainer.actor import TrainerActor
from longboat_runtime.trainer.group import RayTrainerGroup
from tests.rollout.reference import request
from tests.rollout.test_fleet import events_of, opened, serving
from tests.support.tiny_model import build_tiny_experts, build_tiny_model
from tests.support.waiting import eventually_async
from tests.trainer.trainer_world import make_request, make_samples

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.extended]

ENGINES = 3
SAMPLES = make_samples(8)


class WatchedTrainer(TrainerActor):
    """Tells how much it has sent, and the id of its process."""

    def __init__(self, *arguments: Any) -> None:
        from longboat_runtime.weights import layout

        super().__init__(*arguments)
        self._puts = 0
        layout.LEAST_BUCKET_BYTES = 2**16  # several buckets of a tiny model

    @ray.method(concurrency_group="buckets")
    def bucket(self, version: int, number: int) -> tuple[list[bytes], list[ray.ObjectRef]]:
        self._puts += 1
        return super().bucket(version, number)

    def watched(self) -> dict[str, int]:
        own = 0 if self._publisher.sender is None else self._publisher.sender.nbytes
        return {"pid": os.getpid(), "broadcast": self._groups.broadcast_bytes, "puts": self._puts, "own": own}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """The pods of a driver and of a trainer of two ranks."""
    resources = {"longboat-store": 1, "longboat-trainer": 2}
    with bare_nodes():
        made = Cluster(initialize_head=True, head_node_args=_node(resources))
    ray.init(address=made.address, log_to_driver=False)
    yield made
    ray.shutdown()
    made.shutdown()


@pytest.fixture(scope="module")
def store(cluster: Cluster) -> StoreClient:
    return StoreClient(start_store())


def _node(resources: dict[str, float]) -> dict[str, Any]:
    return {"num_cpus": 0, "resources": resources, "object_store_memory": 200_000_000}


@contextmanager
def rollout_pod(cluster: Cluster, name: str, devices: int) -> Iterator[None]:
    with bare_nodes():
        node = cluster.add_node(**_node({"longboat-rollout": devices}), labels={POD_LABEL: name})
    yield
    cluster.remove_node(node)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_tiny_model(tmp_path_factory.mktemp("model"))


def make_job(model: Path, publication: str, engines: int = ENGINES, tensor_parallel: int = 1) -> RLJobSpec:
    return RLJobSpec.model_validate(
        {
            "runtimeRef": {"name": "any"},
            "model": {"path": str(model), "dtype": "Float32", "maxLength": 512},
            "dataset": {"reasoningGym": {"task": "chain_sum"}},
            "algorithm": {"importanceCap": 0},
            "rounds": {"steps": 100, "promptsPerRound": 4},
            "rollout": {
                "enginesPerPod": engines,
                "tensorParallel": tensor_parallel,
                "publication": publication,
                "sampling": {"maxTokens": 32},
                "kvCache": "16Mi",
                "maxSequences": 8,
                "enforceEager": True,
            },
            "trainer": {"replicas": 2, "maxTokensPerBin": 512, "optimizer": {"learningRate": 1e-3}},
            "rewards": [{"name": "r", "kind": "ReasoningGym"}],
        }
    )


@asynccontextmanager
async def job(spec: RLJobSpec, store: StoreClient) -> AsyncIterator[tuple[RayTrainerGroup, RayRolloutFleet]]:
    with pytest.MonkeyPatch.context() as patch:
        ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
        patch.setattr("longboat_runtime.trainer.group.TrainerActor", WatchedTrainer)
        trainer = RayTrainerGroup(spec, store)
        await store.put(SAMPLES)
        async with opened(spec, store) as fleet:
            await trainer.load()
            await fleet.wait_started(spec.rollout.engines_per_pod)
            yield trainer, fleet
        await trainer.close()


async def publish(trainer: RayTrainerGroup, fleet: RayRolloutFleet, version: int) -> PublicationReport:
    publication = await trainer.publish(version)
    report, _ = await asyncio.gather(fleet.publish(publication), trainer.published())
    return report


async def watched(trainer: RayTrainerGroup) -> list[dict[str, int]]:
    return await trainer._call("watched")


def member_of(fleet: RayRolloutFleet, name: str) -> Member:
    return fleet._keeper.members[name]


async def process_of(member: Member) -> int:
    """The id of an engine's process."""
    return await asyncio.to_thread(lambda: ray.get(member.actor.__ray_call__.remote(lambda _: os.getpid())))


async def check_serves(fleet: RayRolloutFleet, version: int, attempt: int) -> None:
    """All engines serve this version's weights."""
    requests = [request(row, index, attempt=attempt) for row in range(4) for index in range(2)]
    await fleet.submit(requests)
    events = await events_of(fleet, len(requests))
    for event in events.values():
        assert isinstance(event, FinishedSample)
        assert {span.version for span in event.spans} == {version}


@pytest.mark.parametrize("publication", ["Direct", "Host"])
async def test_the_others_serve_whatever_becomes_of_one(
    model: Path, store: StoreClient, cluster: Cluster, publication: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An engine is stopped in the middle of a publication; one is killed; successors get the version while the trainer trains."""
    for module, constant, seconds in (
        (direct, "SENDER_SECONDS", 15.0),
        (direct, "WORKER_SECONDS", 35.0),
        (delivery, "WORKER_SECONDS", 35.0),
        (delivery, "BUCKET_SECONDS", 15.0),
    ):
        monkeypatch.setattr(module, constant, seconds)
    spec = make_job(model, publication)
    with rollout_pod(cluster, "only", ENGINES):
        async with job(spec, store) as (trainer, fleet):
            report = await publish(trainer, fleet, 1)
            assert (len(report.serving), dict(report.refused)) == (ENGINES, {})
            assert report.parity < 1e-4
            counted = await watched(trainer)
            size = sum(rank["own"] for rank in counted)
            assert report.bytes == size
            if publication == "Direct":
                check_broadcast(counted)
            else:
                assert [rank["broadcast"] for rank in counted] == [0, 0]
            await check_serves(fleet, 1, attempt=1)

            stopped = member_of(fleet, report.serving[1])
            pid = await process_of(stopped)
            os.kill(pid, signal.SIGSTOP)
            try:
                await trainer.train(make_request(SAMPLES, step=2))
                report = await publish(trainer, fleet, 2)
                assert {*report.serving} == {member.name for member in fleet._keeper.members.started} - {stopped.name}
                assert stopped.state is MemberState.STARTED
            finally:
                os.kill(pid, signal.SIGCONT)
            await serving(fleet, ENGINES)
            await check_serves(fleet, 2, attempt=2)

            training = asyncio.create_task(trainer.train(make_request(SAMPLES, step=3)))
            ray.kill(member_of(fleet, report.serving[0]).actor)
            await eventually_async(lambda: report.serving[0] not in fleet._keeper.members)
            await serving(fleet, ENGINES)
            await check_serves(fleet, 2, attempt=3)
            await training
            report = await publish(trainer, fleet, 3)
            assert len(report.serving) == ENGINES
            await check_serves(fleet, 3, attempt=4)
            assert [rank["pid"] for rank in await watched(trainer)] == [rank["pid"] for rank in counted]


@pytest.mark.parametrize("publication", ["Direct", "Host"])
async def test_engines_that_come_while_the_trainer_trains_serve_the_published_version(
    model: Path, store: StoreClient, cluster: Cluster, publication: str
) -> None:
    """Those of a reshape, and those of a new pod. The weights that the trainer trains are no longer the published ones."""
    spec = make_job(model, publication, engines=2)
    with rollout_pod(cluster, "first", 2):
        async with job(spec, store) as (trainer, fleet):
            await publish(trainer, fleet, 1)
            before = await watched(trainer)
            async with training(trainer):
                assert (await fleet.reshape(2, one_by_one=False)).failure is None
                assert len(await serving(fleet, 1)) == 1
                await check_serves(fleet, 1, attempt=1)
                with rollout_pod(cluster, "second", 2):
                    assert len(await serving(fleet, 2)) == 2
                    await check_serves(fleet, 1, attempt=2)
                    assert (await fleet.reshape(1, one_by_one=True)).failure is None
                    assert len(await serving(fleet, 4)) == 4
                    await check_serves(fleet, 1, attempt=3)
            assert [rank["pid"] for rank in await watched(trainer)] == [rank["pid"] for rank in before]


@asynccontextmanager
async def training(trainer: RayTrainerGroup) -> AsyncIterator[None]:
    """Has the trainer train, one step after another, from a first one that is done until the end, with one that begins then."""
    done = False

    async def train() -> None:
        for step in count(3):
            await trainer.train(make_request(SAMPLES, step=step))
            if done:
                return

    await trainer.train(make_request(SAMPLES, step=2))
    steps = asyncio.create_task(train())
    yield
    done = True
    await steps


@pytest.mark.parametrize("tensor_parallel", [1, 2])
@pytest.mark.parametrize("kind", ["tied", "untied", "experts"])
async def test_broadcasts_bring_all_kinds_of_weights(
    store: StoreClient, cluster: Cluster, tmp_path: Path, kind: str, tensor_parallel: int
) -> None:
    """Linear layers that vLLM joins, an output embedding that is tied or isn't, experts; each in whole and in halves."""
    if kind == "experts":
        model = build_tiny_experts(tmp_path, expert_size=64)
    else:
        model = build_tiny_model(tmp_path, tied=kind == "tied")
    spec = make_job(model, "Direct", engines=2 // tensor_parallel, tensor_parallel=tensor_parallel)
    with rollout_pod(cluster, f"{kind}-{tensor_parallel}", 2):
        async with job(spec, store) as (trainer, fleet):
            for version in (1, 2):
                report = await publish(trainer, fleet, version)
                assert (len(report.serving), dict(report.refused)) == (2 // tensor_parallel, {})
                assert report.parity < 1e-4
                await check_serves(fleet, version, attempt=version)
                check_broadcast(await watched(trainer), version)
                await trainer.train(make_request(SAMPLES, step=version))


def check_broadcast(ranks: list[dict[str, int]], publications: int = 1) -> None:
    """Everything was broadcast once to the rollout pod, half of it by each rank, and nothing was put into Ray's object store."""
    size = sum(rank["own"] for rank in ranks)
    assert [rank["puts"] for rank in ranks] == [0] * len(ranks)
    assert publications * size <= sum(rank["broadcast"] for rank in ranks) <= 1.02 * publications * size
    assert all(rank["broadcast"] == publications * rank["own"] for rank in ranks)
    assert max(rank["own"] for rank in ranks) <= 1.1 * size / len(ranks)
