from __future__ import annotations

import asyncio

import pytest
import torch

from longboat_runtime.weights.gate import FetchFailed
from longboat_runtime.weights.incoming import Incoming
from longboat_runtime.weights.payload import fetched
from tests.support.publications import Packed, pack


def three_buckets() -> Packed:
    return pack([(name, torch.ones(100)) for name in "abc"], limit=400)


async def test_a_bucket_is_loaded_before_the_last_one_comes() -> None:
    """The engine's thread takes them in order, whatever order they come in; each is let go as soon as the next is taken."""
    packed, incoming, order = three_buckets(), Incoming(3), []

    def engine() -> str:
        for number, bucket in enumerate(fetched(incoming)):
            assert bucket is packed.bucket(number)
            order.append(f"loads {number}")
        return incoming.checksum

    working = asyncio.create_task(asyncio.to_thread(engine))

    async def offer(number: int) -> None:
        await incoming.load(number, packed.bucket(number))
        order.append(f"let go {number}")

    second = asyncio.create_task(offer(1))
    await offer(0)
    third = asyncio.create_task(offer(2))
    concluding = asyncio.create_task(incoming.conclude(packed.checksum))
    assert await working == packed.checksum
    incoming.close()
    await asyncio.gather(second, third)
    assert not await concluding
    assert order.index("let go 0") < order.index("loads 2")


async def test_all_buckets_can_be_taken_once_more() -> None:
    packed, incoming = three_buckets(), Incoming(3)

    def engine() -> list[int]:
        names = [len(bucket.entries) for bucket in fetched(incoming)]
        assert incoming.checksum == packed.checksum
        return names + [len(bucket.entries) for bucket in fetched(incoming)]

    working = asyncio.create_task(asyncio.to_thread(engine))
    for again in (True, False):
        loading = asyncio.gather(*(incoming.load(number, packed.bucket(number)) for number in range(3)))
        concluding = asyncio.create_task(incoming.conclude(packed.checksum))
        if not again:
            assert await working == [1] * 6
            incoming.close()
        await loading
        assert await concluding is again


async def test_an_update_that_gets_no_more_buckets_fails_and_so_do_those_who_offer_them() -> None:
    packed, incoming = three_buckets(), Incoming(3)
    working = asyncio.create_task(asyncio.to_thread(lambda: [*fetched(incoming)]))
    waiting = asyncio.create_task(incoming.load(2, packed.bucket(2)))
    await asyncio.sleep(0)
    incoming.fail("the trainer is gone")
    with pytest.raises(FetchFailed, match="the trainer is gone"):
        await working
    with pytest.raises(FetchFailed, match="the trainer is gone"):
        await waiting
    with pytest.raises(FetchFailed):
        await incoming.load(1, packed.bucket(1))
    assert not await incoming.conclude(packed.checksum)
