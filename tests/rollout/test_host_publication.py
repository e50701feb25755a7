"""A publication of 2 GiB through Ray's object store: what it takes of shared memory, and in which order things happen."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import ray
import torch

from longboat_runtime.local.ray import start_ray
from longboat_runtime.object_store import object_store_need
from longboat_runtime.rollout.actor import EngineActor
from longboat_runtime.rollout.delivery import deliver
from longboat_runtime.rollout.engine import EngineConfig
from longboat_runtime.rollout.environment import NodeDevices
from longboat_runtime.rollout.member import Member, Slot
from longboat_runtime.rollout.ray_cluster import RolloutNode
from longboat_runtime.rollout.weight_rounds import LateRounds, WeightRound
from longboat_runtime.weights.bucket import Bucket
from longboat_runtime.weights.checksum import checksum_of
from longboat_runtime.weights.layout import BucketLayout, TensorKind, lay_out
from longboat_runtime.weights.payload import StoredBucket, fetched
from longboat_runtime.weights.publication import WeightPublication
from longboat_runtime.weights.sender import WeightSender
from longboat_runtime.weights.source import TrainerSource

pytestmark = pytest.mark.extended

MIB = 2**20
TENSOR = 32 * MIB
TENSORS = 64
ENGINES = 3
LAYOUT = lay_out([[TensorKind(f"t{number}", "uint8", (TENSOR,), TENSOR)] for number in range(TENSORS)], 1)


class Sender:
    """Gathers one version after another, slowly enough that engines could wait for each bucket, and hands buckets out."""

    def __init__(self, layout: tuple[BucketLayout, ...]) -> None:
        self._sender = WeightSender(layout, 0, lambda size: torch.empty(size, dtype=torch.uint8))
        self._layout = layout

    def gather(self, version: int) -> None:
        self._sender.begin(version)
        for number in range(len(self._layout)):
            with self._sender.filling(number) as places:
                for place in places:
                    place.fill_(version)

    @ray.method(concurrency_group="buckets")
    def bucket(self, version: int, number: int) -> tuple[list[bytes], list[ray.ObjectRef]]:
        with self._sender.reading(version, number) as (bucket, digests):
            return digests, [ray.put(bucket.data)]


class Loading:
    """An engine that reads every byte of its weights, and refuses wrong ones."""

    def update_weights(self, publication: WeightPublication, _: float | None) -> float:
        digests: list[bytes] = []
        for bucket in fetched(publication.payload):
            assert isinstance(bucket, Bucket)
            digests += bucket.digests()
            del bucket
        assert checksum_of(digests) == publication.payload.checksum
        return 0.0


class LoadingActor(EngineActor):
    async def start(self) -> None:
        self._engine = Loading()  # type: ignore[assignment]


class Watched(TrainerSource):
    """Notes when buckets have been put."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.events: list[str] = []

    async def bucket(self, number: int) -> StoredBucket:
        bucket = await super().bucket(number)
        self.events.append(f"put {number}")
        return bucket


class WatchedRound(WeightRound):
    async def loaded(self, receiver: str, number: int) -> None:
        self.source.events.append(f"loaded {number}")  # type: ignore[attr-defined]
        await super().loaded(receiver, number)


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    largest = max(bucket.nbytes for bucket in LAYOUT)
    start_ray({"longboat-rollout": ENGINES}, object_store_need(largest, 0))
    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
    yield
    ray.shutdown()


def shared_memory() -> int:
    """Counts the bytes of /dev/shm that this test's object store has touched."""
    # Processes named "raylet" may be more: a child has its name and its files until it runs its own program.
    raylet = ray._private.worker._global_node.all_processes["raylet"][0].process.pid
    total = 0
    for entry in Path(f"/proc/{raylet}/fd").iterdir():
        with suppress(FileNotFoundError):  # closed meanwhile
            if str(entry.readlink()).startswith("/dev/shm/"):
                total += entry.stat().st_blocks * 512
    return total


def spilled() -> list[Path]:
    """Objects that Ray has written to disk."""
    session = Path(ray._private.worker._global_node.get_session_dir_path())
    return [*session.glob("**/ray_spilled_objects*/*")]


async def test_buckets_travel_one_behind_another_in_little_shared_memory(cluster: None) -> None:
    sender = ray.remote(concurrency_groups={"buckets": 4})(Sender).options(num_cpus=0).remote(LAYOUT)
    actor = ray.remote(LoadingActor).options(num_cpus=0)
    members = []
    for number in range(ENGINES):
        config = EngineConfig(f"engine-{number}", "model", "float32")
        slot = Slot(RolloutNode("node", "pod", NodeDevices(ENGINES)), (number,))
        members.append(Member(config, actor.remote(config, NodeDevices(ENGINES), None), slot))
    await asyncio.gather(*(member.actor.start.remote() for member in members))
    largest, highest = max(bucket.nbytes for bucket in LAYOUT), 0
    assert largest <= 512 * MIB
    for version in range(2):
        source = Watched(version, LAYOUT, [sender])
        publication = WeightPublication(version, source, (1, 2), (-1.0,))
        gathering = asyncio.ensure_future(sender.gather.remote(version))
        await asyncio.sleep(0)
        round_ = WatchedRound(source, [member.name for member in members])
        loading = asyncio.gather(*(deliver(member, publication, None, round_, LateRounds()) for member in members))
        while not loading.done():
            highest = max(highest, await asyncio.to_thread(shared_memory))
        await loading
        await gathering
        assert source.events.index("loaded 0") < source.events.index(f"put {len(LAYOUT) - 1}")
    assert 0 < highest <= 3 * largest + 256 * MIB
    assert spilled() == [], "nothing went through the disk"
