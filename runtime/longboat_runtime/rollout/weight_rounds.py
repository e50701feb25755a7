"""Rounds that give the buckets of a publication to several engines together."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from longboat_runtime.weights.payload import SentBucket, StoredBucket
from longboat_runtime.weights.source import WeightSource

# The most buckets in Ray's object store at one time: one is loaded, one travels, one is put.
IN_FLIGHT = 3


def releasable(loaded: Iterable[int], buckets: int, in_flight: int = IN_FLIGHT) -> range:
    """Returns the numbers of the buckets that may be on their way, given how many each receiver has loaded (pure).

    The rule: a bucket is put once all receivers have loaded all but `in_flight` - 1 of those before it, and is dropped as soon as all
    have loaded it. Without receivers nothing is put.
    """
    slowest = min(loaded, default=buckets)
    return range(slowest, min(slowest + in_flight, buckets))


class WeightRound:
    """One pass of `receivers`, by name, over a publication's buckets, each of which is put once for all of them.

    A receiver takes buckets in order. One that has left holds nothing up.
    """

    in_flight = IN_FLIGHT

    def __init__(self, source: WeightSource, receivers: Iterable[str] = ()) -> None:
        self.source = source
        self._loaded = dict.fromkeys(receivers, 0)
        self._put: dict[int, asyncio.Task[StoredBucket]] = {}
        self._changed = asyncio.Condition()

    def join(self, receiver: str) -> None:
        """Adds a receiver, before any has taken a bucket."""
        self._loaded[receiver] = 0

    async def delivered(self) -> None:
        """Waits until each receiver has loaded all buckets, or has left."""
        async with self._changed:
            await self._changed.wait_for(lambda: not self._releasable)

    async def bucket(self, receiver: str, number: int) -> StoredBucket | SentBucket:
        """Waits until a bucket may be put, and returns it. Raises what the source raises."""
        async with self._changed:
            await self._changed.wait_for(lambda: number in self._releasable)
        if number not in self._put:
            self._put[number] = asyncio.ensure_future(self.source.bucket(number))
        return await asyncio.shield(self._put[number])

    async def checksum(self) -> str:
        """Returns the checksum of all tensors, once the receiver has loaded all buckets."""
        return self.source.checksum

    async def loaded(self, receiver: str, number: int) -> None:
        """Notes that a receiver has loaded a bucket and those before it."""
        async with self._changed:
            if receiver in self._loaded:
                self._loaded[receiver] = max(self._loaded[receiver], number + 1)
            self._drop()

    async def leave(self, receiver: str) -> None:
        """Notes that a receiver takes no more buckets."""
        async with self._changed:
            self._loaded.pop(receiver, None)
            self._drop()

    @property
    def _releasable(self) -> range:
        return releasable(self._loaded.values(), len(self.source), self.in_flight)

    def _drop(self) -> None:
        remaining = self._releasable
        for number in [number for number in self._put if number not in remaining]:
            self._put.pop(number).cancel()
        self._changed.notify_all()


class LateRounds:
    """Rounds for engines that come after a publication. Those that come during a round share the next one.

    So Ray's object store never has more buckets than those of one round.
    """

    def __init__(self) -> None:
        self._next: tuple[WeightRound, asyncio.Future[None]] | None = None

    def follow(self, round_: WeightRound) -> None:
        """Has rounds of the same source wait for this one, which begins now."""
        begun: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        begun.set_result(None)
        self._next = (round_, begun)

    async def join(self, receiver: str, source: WeightSource) -> WeightRound:
        """Adds the receiver to the next round of this source, and returns that once it begins. The receiver has to leave it at its end."""
        if self._next is None or self._next[1].done() or self._next[0].source is not source:
            before = self._next[0] if self._next is not None and self._next[0].source is source else None
            round_ = WeightRound(source)
            self._next = (round_, asyncio.create_task(before.delivered() if before is not None else asyncio.sleep(0)))
        round_, beginning = self._next
        round_.join(receiver)
        try:
            await asyncio.shield(beginning)
        except BaseException:
            await round_.leave(receiver)
            raise
        return round_
