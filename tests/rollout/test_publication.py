"""Publications from a trainer's ranks to engines, on a real Ray: by broadcasts and through the host's memory."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import ray

from longboat_crds.job import RLJobSpec
from longboat_runtime.local.ray import start_ray
from longboat_runtime.rollout import direct, handing_over
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
from tests.support.tiny_model import build_tiny_model
from tests.support.waiting import eventually_async
from tests.trainer.trainer_world import make_request, make_samples

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.extended]

ENGINES = 3
SAMPLES = make_samples(8)


class WatchedTrainer(TrainerActor):
    """Says what it has sent, and in which process it is."""

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
        return {"pid": os.getpid(), "handed": self._groups.handed, "puts": self._puts, "own": own}


@pytest.fixture(scope="module")
def store() -> Iterator[StoreClient]:
    resources = {"longboat-rollout": ENGINES, "longboat-store": 1, "longboat-trainer": 2}
    start_ray(resources, object_store=200_000_000)
    yield StoreClient(start_store())
    ray.shutdown()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_tiny_model(tmp_path_factory.mktemp("model"))


def make_job(model: Path, publication: str) -> RLJobSpec:
    return RLJobSpec.model_validate(
        {
            "runtimeRef": {"name": "any"},
            "model": {"path": str(model), "dtype": "Float32", "maxLength": 512},
            "dataset": {"reasoningGym": {"task": "chain_sum"}},
            "algorithm": {"importanceCap": 0},
            "rounds": {"steps": 100, "promptsPerRound": 4},
            "rollout": {
                "enginesPerPod": ENGINES,
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
async def job(
    model: Path, store: StoreClient, publication: str
) -> AsyncIterator[tuple[RayTrainerGroup, RayRolloutFleet]]:
    spec = make_job(model, publication)
    with pytest.MonkeyPatch.context() as patch:
        ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
        patch.setattr("longboat_runtime.trainer.group.TrainerActor", WatchedTrainer)
        trainer = RayTrainerGroup(spec, store)
        await store.put(SAMPLES)
        async with opened(spec, store) as fleet:
            await trainer.load()
            await fleet.wait_started(ENGINES)
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
    """The number of an engine's process."""
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
    model: Path, store: StoreClient, publication: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An engine is stopped in the middle of a publication; one is killed; successors get the version while the trainer trains."""
    for constant in ("SENDER_SECONDS", "WORKER_SECONDS"):
        monkeypatch.setattr(direct, constant, 15.0 if constant == "SENDER_SECONDS" else 35.0)
    monkeypatch.setattr(handing_over, "BUCKET_SECONDS", 15.0)
    monkeypatch.setattr(handing_over, "WORKER_SECONDS", 35.0)
    async with job(model, store, publication) as (trainer, fleet):
        report = await publish(trainer, fleet, 1)
        assert (len(report.serving), dict(report.refused)) == (ENGINES, {})
        assert report.parity < 1e-4
        counted = await watched(trainer)
        size = sum(rank["own"] for rank in counted)
        assert report.bytes == size
        if publication == "Direct":
            assert [rank["puts"] for rank in counted] == [0, 0], "nothing is put into Ray's object store"
            assert size <= sum(rank["handed"] for rank in counted) <= 1.02 * size, "once for a rollout pod"
            assert all(rank["handed"] == rank["own"] for rank in counted)
            assert max(rank["own"] for rank in counted) <= 1.1 * size / 2
        else:
            assert [rank["handed"] for rank in counted] == [0, 0]
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
