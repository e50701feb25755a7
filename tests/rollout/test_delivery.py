"""Tests which buckets engines get of a publication, and when; they are real actors without Ray, whose engines only count buckets."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from longboat_runtime.rollout.actor import EngineActor
from longboat_runtime.rollout.delivery import BUCKET_SECONDS, bucket_seconds, deliver
from longboat_runtime.rollout.engine import EngineConfig
from longboat_runtime.rollout.environment import NodeDevices
from longboat_runtime.rollout.member import Member, Slot
from longboat_runtime.rollout.ray_cluster import RolloutNode
from longboat_runtime.rollout.weight_rounds import IN_FLIGHT, LateRounds, WeightRound
from longboat_runtime.weights.bucket import TensorEntry
from longboat_runtime.weights.gate import ParityExceeded
from longboat_runtime.weights.payload import StoredBucket, fetched
from longboat_runtime.weights.publication import WeightPublication

# Each engine updates in a thread of the event loop's pool, which has few on a machine of few CPUs.
ENGINES, BUCKETS = 4, 6


class Refusing:
    """An engine whose log-probs differ: it takes all buckets once more, to name the tensors that do."""

    def update_weights(self, publication: WeightPublication, _: float | None) -> float:
        for _bucket in fetched(publication.payload):
            pass
        assert publication.payload.checksum == "sum"
        taken = sum(1 for _bucket in fetched(publication.payload))
        raise ParityExceeded(f"log-probs differ after {taken} buckets")


class Stored:
    """A bucket in the object store, for as long as someone holds it."""

    present, most = 0, 0

    def __init__(self) -> None:
        Stored.present += 1
        Stored.most = max(Stored.most, Stored.present)

    def __del__(self) -> None:
        Stored.present -= 1

    def __await__(self) -> Generator[Any, None, Any]:
        yield from asyncio.sleep(0).__await__()
        return np.zeros(1, np.uint8)


class Source:
    nbytes, checksum, trainer = BUCKETS, "sum", ()

    def __len__(self) -> int:
        return BUCKETS

    async def bucket(self, number: int) -> StoredBucket:
        return StoredBucket((), Stored())  # type: ignore[arg-type]


class Local:
    """Calls an actor in this process as if it were Ray's."""

    def __init__(self, actor: EngineActor) -> None:
        self._actor = actor

    def __getattr__(self, name: str) -> Any:
        return SimpleNamespace(remote=getattr(self._actor, name))


def member(number: int) -> Member:
    config = EngineConfig(f"engine-{number}", "model", "float32", devices=(number,))
    node = RolloutNode("node", "pod", NodeDevices(ENGINES))
    actor = EngineActor(config, node.has, None)  # type: ignore[arg-type]
    actor._engine = Refusing()  # type: ignore[assignment]
    return Member(config, Local(actor), Slot(node, config.devices))


async def test_engines_that_all_refuse_compare_their_weights_with_buckets_that_they_share() -> None:
    """Each by itself would have three of its own in the store, which has room for those of one round, and goes on to the disk."""
    source, late = Source(), LateRounds()
    members = [member(number) for number in range(ENGINES)]
    round_ = WeightRound(source, [each.name for each in members])  # type: ignore[arg-type]
    late.follow(round_)
    publication = WeightPublication(1, source, (1, 2), (-1.0,))
    Stored.most = 0
    verdicts = await asyncio.gather(
        *(deliver(each, publication, None, round_, late) for each in members), return_exceptions=True
    )
    assert [str(verdict) for verdict in verdicts] == [f"log-probs differ after {BUCKETS} buckets"] * ENGINES
    assert Stored.most <= IN_FLIGHT


@pytest.mark.parametrize("nbytes", [512 * 2**20, 2816 * 2**20])
def test_a_bucket_may_take_as_long_as_a_slow_network_needs_for_all_pods(nbytes: int) -> None:
    """The larger one has all experts of a layer of Mixtral 8x7B."""
    pods, bytes_per_second = 24, 10e9 / 8
    travels = IN_FLIGHT * pods * nbytes / bytes_per_second
    assert travels < bucket_seconds(nbytes, direct=False)
    assert bucket_seconds(0, direct=False) == BUCKET_SECONDS < bucket_seconds(0, direct=True)


def test_a_stored_bucket_knows_its_size() -> None:
    entries = (TensorEntry("a", "uint8", (3,), 0, 3), TensorEntry("b", "uint8", (5,), 64, 5))
    assert StoredBucket(entries, None).nbytes == 8  # type: ignore[arg-type]
