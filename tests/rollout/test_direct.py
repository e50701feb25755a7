"""Tests which pods are broadcast to, and how a round goes on when one is left behind; senders and engines are stand-ins."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from longboat_crds.rollout import PublicationMode
from longboat_runtime.rollout import direct
from longboat_runtime.rollout.direct import DirectRound, PodGroup, PodGroups, skipped_publications, version_problem
from longboat_runtime.rollout.engine import EngineConfig
from longboat_runtime.rollout.environment import NodeDevices
from longboat_runtime.rollout.member import Member, Slot
from longboat_runtime.rollout.ray_cluster import RolloutNode
from longboat_runtime.weights.gate import FetchFailed
from longboat_runtime.weights.payload import SentBucket

GPU = {"torch": "2.13", "NCCL": "2.29"}
CPU = {"torch": "2.13", "NCCL": "no GPU"}


@pytest.mark.parametrize(
    ("senders", "workers", "problem"),
    [
        ([GPU, GPU], [GPU], None),
        ([CPU], [CPU, CPU], None),
        ([GPU], [GPU, GPU | {"NCCL": "2.28"}], r"NCCL is 2.29 in the trainer and 2.28"),
        ([GPU, GPU | {"torch": "2.12"}], [GPU], "torch is 2.13 in the trainer and 2.12"),
        ([GPU], [CPU], "NCCL"),
    ],
)
def test_both_ends_must_have_the_same_versions(
    senders: list[dict[str, str]], workers: list[dict[str, str]], problem: str | None
) -> None:
    difference = version_problem(senders, workers)
    assert (difference is None) if problem is None else (difference is not None and problem in difference)


class Engine:
    """An engine's actor with workers of some version."""

    def __init__(self, version: Mapping[str, str]) -> None:
        self.version, self.calls, self.call_workers = version, [], self
        self.error: str | None = None

    async def remote(self, method: str, *arguments: Any) -> list[Any]:
        self.calls.append((method, *arguments))
        return [self.version] if method == "weight_versions" else [self.error]


class Source:
    """A trainer of two senders, with six buckets that go round them."""

    nbytes, checksum, trainer = 6, "sum", ("first", "second")

    def __init__(self) -> None:
        self.groups: list[str] = []
        self.ended: list[str] = []
        self.sends: list[tuple[int, tuple[str, ...]]] = []
        self.behind: dict[int, list[str]] = {}
        self.error: Exception | None = None
        self.busy: set[int] = set()

    def __len__(self) -> int:
        return 6

    async def versions(self) -> list[Mapping[str, str]]:
        return [CPU, CPU]

    async def open_groups(self, key: str) -> dict[int, str]:
        self.groups.append(key)
        return {0: "host:1", 1: "host:2"}

    async def join_groups(self, key: str, addresses: Mapping[int, str], size: int, seconds: float) -> None:
        self.size = size

    async def leave_groups(self, key: str) -> None:
        self.ended.append(key)

    def sent(self, number: int) -> SentBucket:
        return SentBucket((), 1, number % 2)

    async def send(self, number: int, keys: Sequence[str]) -> list[str]:
        assert number % 2 not in self.busy, "a sender has one order"
        self.busy.add(number % 2)
        await asyncio.sleep(0)
        self.busy.remove(number % 2)
        if self.error is not None:
            raise self.error
        self.sends.append((number, tuple(keys)))
        return self.behind.get(number, [])


def member(pod: str, number: int = 0, version: Mapping[str, str] = CPU, devices: int = 1) -> Member:
    first = number * devices
    config = EngineConfig(f"{pod}/{number}", "model", "float32", devices=tuple(range(first, first + devices)))
    node = RolloutNode(pod, pod, NodeDevices(8))
    return Member(config, Engine(version), Slot(node, config.devices))


async def test_a_pods_groups_are_kept_until_its_engines_or_the_trainer_change() -> None:
    source, groups = Source(), PodGroups(PublicationMode.DIRECT)
    engines = [member("a", 0, devices=2), member("a", 1, devices=2)]
    first = (await groups.join({"a": engines}, source))["a"]
    assert source.size == 5, "a sender and all workers of its engines"
    joins = [call for engine in engines for call in engine.actor.calls if call[0] == "join_weight_groups"]
    assert [(join[3], join[4]) for join in joins] == [(1, 5), (3, 5)]
    assert (await groups.join({"a": engines}, source))["a"] is first
    restarted = [engines[0], member("a", 2, devices=2)]
    second = (await groups.join({"a": restarted}, source))["a"]
    assert source.ended == [first.key]
    other = Source()
    other.trainer = ("third",)
    third = (await groups.join({"a": restarted}, other))["a"]
    assert source.ended == [first.key, second.key]
    assert groups.discard(restarted[1]) is third
    assert groups.discard(restarted[0]) is None


async def test_a_pod_of_another_version_or_whose_group_can_not_be_made_gets_weights_through_the_host() -> None:
    source, groups = Source(), PodGroups(PublicationMode.DIRECT)
    broken = member("broken")
    broken.actor.error = "no route to host"
    pods = {"good": [member("good")], "other": [member("other", version=GPU)], "broken": [broken]}
    joined = await groups.join(pods, source)
    assert joined.keys() == {"good"}
    assert any(key.startswith("broken/") for key in source.ended)
    for mode in (PublicationMode.AUTO, PublicationMode.HOST):
        assert await PodGroups(mode).join(pods, source) == {}


async def test_a_pod_whose_group_can_not_be_made_is_tried_less_and_less_often() -> None:
    source, groups = Source(), PodGroups(PublicationMode.DIRECT)
    broken, good = member("broken"), [member("good")]
    broken.actor.error = "no route to host"
    tries = []
    for number in range(12):
        before = len(source.groups)
        assert (await groups.join({"broken": [broken], "good": good}, source)).keys() == {"good"}
        if any(key.startswith("broken") for key in source.groups[before:]):
            tries.append(number)
    assert tries == [0, 1, 3, 7]
    groups.passed("broken")
    groups.failed("broken")
    assert skipped_publications(1) == 0, "the first may be chance"
    assert skipped_publications(10**6) == 63


async def test_an_engine_that_answers_nothing_keeps_no_group_of_its_pod_and_holds_up_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its pod has groups with ranks that have been started again since."""
    monkeypatch.setattr(direct, "SENDER_SECONDS", 1.0)
    groups, stopped = PodGroups(PublicationMode.DIRECT), member("stopped")
    pods = {"stopped": [stopped], "good": [member("good")]}
    assert (await groups.join(pods, Source())).keys() == pods.keys()

    class Stopped(Engine):
        async def remote(self, method: str, *arguments: Any) -> list[Any]:
            return await asyncio.get_running_loop().create_future()

    stopped.actor = Stopped(CPU)
    started_again = Source()
    started_again.trainer = ("third", "fourth")
    assert (await groups.join(pods, started_again)).keys() == {"good"}


def round_of(source: Source, *pods: str) -> DirectRound:
    return DirectRound(source, [PodGroup(pod, (member(pod, 0), member(pod, 1)), source) for pod in pods])


async def receive(round_: DirectRound, name: str, buckets: int = 6) -> int:
    """Receives buckets; returns how many, less if the pod is left behind."""
    for number in range(buckets):
        try:
            await round_.bucket(name, number)
        except FetchFailed:
            return number
        await round_.loaded(name, number)
    if buckets == 6:
        await round_.checksum()
    await round_.leave(name)
    return buckets


NAMES = ("a/0", "a/1", "b/0", "b/1")


async def test_each_bucket_is_sent_once_to_all_pods() -> None:
    source = Source()
    round_ = round_of(source, "a", "b")
    assert await asyncio.gather(*(receive(round_, name) for name in NAMES)) == [6] * 4
    assert source.sends == [(number, ("a", "b")) for number in range(6)]


async def test_a_pod_that_is_left_behind_holds_up_no_other() -> None:
    source = Source()
    source.behind[1] = ["a"]
    round_ = round_of(source, "a", "b")

    async def until_left(name: str) -> None:
        await receive(round_, name)
        await round_.leave(name)

    await asyncio.gather(*(until_left(name) for name in NAMES))
    assert source.sends[-1] == (5, ("b",))
    assert round_.failed.keys() == {"a"}


async def test_an_engine_that_leaves_early_takes_its_pod_out() -> None:
    source = Source()
    round_ = round_of(source, "a", "b")
    received = await asyncio.gather(receive(round_, "a/0", 2), *(receive(round_, name) for name in NAMES[1:]))
    assert received[0] == 2
    assert received[2:] == [6, 6]
    assert "a" in round_.failed


async def test_a_sender_that_is_gone_fails_all() -> None:
    source = Source()
    source.error = RuntimeError("the sender is gone")
    round_ = round_of(source, "a")
    await round_.bucket("a/0", 0)
    with pytest.raises(FetchFailed, match="the sender is gone"):
        await round_.bucket("a/1", 2)


async def test_a_sender_that_dies_after_the_last_bucket_has_arrived_fails_all() -> None:
    """Its digests went with it."""
    source = Source()
    source.error = RuntimeError("the sender is gone")
    round_ = round_of(source, "a")
    await round_.bucket("a/0", 0)
    await round_.loaded("a/0", 0)
    with pytest.raises(FetchFailed, match="the sender is gone"):
        await round_.checksum()
