from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longboat_runtime.rollout.weight_rounds import IN_FLIGHT, LateRounds, WeightRound, releasable
from longboat_runtime.weights.payload import StoredBucket
from tests.support.waiting import eventually_async


@given(st.lists(st.integers(0, 9), max_size=5), st.integers(0, 9))
def test_the_slowest_receiver_decides_what_is_in_flight(loaded: list[int], buckets: int) -> None:
    loaded = [min(count, buckets) for count in loaded]
    numbers = releasable(loaded, buckets)
    assert len(numbers) <= IN_FLIGHT
    if loaded and min(loaded) < buckets:
        assert min(loaded) in numbers, "the slowest gets its next"
        assert all(number < buckets for number in numbers)
    else:
        assert not numbers


class Source:
    """Counts buckets that are there."""

    nbytes, checksum = 6, "sum"

    def __init__(self) -> None:
        self.put: list[int] = []

    def __len__(self) -> int:
        return 6

    async def bucket(self, number: int) -> StoredBucket:
        self.put.append(number)
        await asyncio.sleep(0)
        return StoredBucket((), f"object {number}")  # type: ignore[arg-type]


async def receive(round_: WeightRound, name: str, stops: asyncio.Event | None = None) -> None:
    for number in range(6):
        await round_.bucket(name, number)
        if stops is not None:
            await stops.wait()
        await round_.loaded(name, number)


async def test_each_bucket_is_put_once_for_all_receivers() -> None:
    source = Source()
    round_ = WeightRound(source, "abc")
    await asyncio.gather(*(receive(round_, name) for name in "abc"))
    assert source.put == [*range(6)]
    assert not round_._put


async def test_a_receiver_that_stands_still_holds_the_others_up_until_it_leaves() -> None:
    source, never = Source(), asyncio.Event()
    round_ = WeightRound(source, "ab")
    slow = asyncio.create_task(receive(round_, "a", never))
    fast = asyncio.create_task(receive(round_, "b"))
    await eventually_async(lambda: len(source.put) >= IN_FLIGHT)
    assert source.put == [*range(IN_FLIGHT)]
    assert len(round_._put) == IN_FLIGHT
    await round_.leave("a")
    await fast
    assert source.put == [*range(6)]
    slow.cancel()


async def test_a_bucket_that_can_not_be_had_fails_for_all() -> None:
    class Broken(Source):
        async def bucket(self, number: int) -> StoredBucket:
            raise OSError("gone")

    round_ = WeightRound(Broken(), "ab")
    for _ in "ab":
        with pytest.raises(OSError, match="gone"):
            await round_.bucket("a", 0)


async def test_engines_that_come_during_a_late_round_get_the_next_one_together() -> None:
    source, rounds = Source(), LateRounds()
    first = await rounds.join("a", source)
    others = [asyncio.create_task(rounds.join(name, source)) for name in "bc"]
    await first.bucket("a", 0)
    assert not any(other.done() for other in others)
    await receive(first, "a")
    second, third = await asyncio.gather(*others)
    assert second is third is not first
    await asyncio.gather(receive(second, "b"), receive(second, "c"))
    assert source.put == [*range(6)] * 2


async def test_a_late_round_waits_for_the_buckets_of_the_publication_itself() -> None:
    """But not for the verdicts of its engines."""
    source, rounds = Source(), LateRounds()
    main = WeightRound(source, "ab")
    rounds.follow(main)
    late = asyncio.create_task(rounds.join("c", source))
    receiving = asyncio.create_task(receive(main, "a"))
    await eventually_async(lambda: len(source.put) >= IN_FLIGHT)
    assert not late.done()
    await main.leave("b")
    await receiving
    await receive(await late, "c")


async def test_a_late_round_of_another_publication_does_not_wait() -> None:
    rounds = LateRounds()
    first = await rounds.join("a", Source())
    assert await rounds.join("a", Source()) is not first
