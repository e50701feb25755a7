"""Delivers a publication to one engine: the driver gives its actor the buckets while the engine loads them."""

from __future__ import annotations

import asyncio
import itertools
from contextlib import suppress
from dataclasses import replace

from ray.exceptions import RayError

from longboat_runtime.rollout.direct import WORKER_SECONDS, DirectRound
from longboat_runtime.rollout.engine import EngineDead
from longboat_runtime.rollout.member import Member
from longboat_runtime.rollout.weight_rounds import LateRounds, WeightRound
from longboat_runtime.weights.gate import FetchFailed
from longboat_runtime.weights.payload import SentBucket, StoredBucket
from longboat_runtime.weights.publication import PublicationGone, WeightPublication

# How long an engine may take for a bucket, in seconds, after it has loaded the one before: one that takes longer is left behind, since all
# others wait for it. Several buckets travel at one time, but through a slow network they still arrive one after another. A large bucket has
# more time, by the least bytes a second that an engine has to get: with 10 Gbit/s at a sender each of 25 pods gets as many while three
# buckets travel.
BUCKET_SECONDS = 60.0
LEAST_BYTES_PER_SECOND = 16 * 2**20
# How long it may take from its last bucket to its verdict.
VERDICT_SECONDS = 600.0

# Errors of the trainer's senders or of the engine's actor by which a bucket doesn't reach an engine.
NOT_FETCHED = (RayError, EngineDead, FetchFailed, PublicationGone)

_numbers = itertools.count(1)
_notices: set[asyncio.Future[None]] = set()


class TooSlow(FetchFailed):
    """An engine took too long for a bucket or its verdict. What it does now isn't known; what ran in it is lost."""


async def deliver(
    member: Member, publication: WeightPublication, calibrated: float | None, round_: WeightRound, late: LateRounds
) -> float:
    """Has an engine load the publication in a round, and returns its parity. One that takes all buckets once more does so in a `late` round.

    Raises UpdateFailed (FetchFailed if a bucket can't be had, TooSlow), and what the engine dies of.
    """
    number = next(_numbers)
    announced = replace(publication, payload=len(publication.payload))
    updating = asyncio.ensure_future(member.actor.update_weights.remote(number, announced, calibrated))
    feeding = asyncio.create_task(_feed(member, number, publication, round_, late))
    try:
        await asyncio.wait([updating, feeding], return_when=asyncio.FIRST_COMPLETED)
        seconds = VERDICT_SECONDS
        if feeding.done() and (failure := feeding.exception()) is not None:
            if isinstance(failure, TooSlow) or not isinstance(failure, NOT_FETCHED):
                raise failure
            await round_.leave(member.name)
            _give_up(member, number, f"a bucket can't be fetched: {failure}")
            seconds = bucket_seconds(0, direct=isinstance(round_, DirectRound))
        async with asyncio.timeout(seconds):
            return float(await asyncio.shield(updating))
    except TimeoutError:
        raise _no_verdict(member, publication, seconds) from None
    finally:
        if not updating.done():
            updating.cancel()
            _give_up(member, number, "the engine was too slow, or another publication has come")
        feeding.cancel()
        await round_.leave(member.name)


async def _feed(
    member: Member, number: int, publication: WeightPublication, round_: WeightRound, late: LateRounds
) -> None:
    """Gives the engine all buckets, and again if it asks for them once more, together with others that do: stores have room for one round."""
    while True:
        try:
            again = await _feed_once(member, number, publication, round_)
        finally:
            await round_.leave(member.name)
        if not again:
            return
        round_ = await late.join(member.name, publication.payload)


async def _feed_once(member: Member, number: int, publication: WeightPublication, round_: WeightRound) -> bool:
    """Gives the engine all buckets of a round; returns whether it asks for them once more."""
    try:
        async with asyncio.TaskGroup() as taking:
            before: asyncio.Task[None] | None = None
            for index in range(len(publication.payload)):
                bucket = await round_.bucket(member.name, index)
                before = taking.create_task(_take(member, number, index, bucket, round_, before))
                del bucket
    except BaseExceptionGroup as failures:
        raise failures.exceptions[0] from None
    checksum = await round_.checksum()
    try:
        async with asyncio.timeout(VERDICT_SECONDS):
            return bool(await member.actor.conclude_weights.remote(number, checksum))
    except TimeoutError:
        raise _no_verdict(member, publication, VERDICT_SECONDS) from None


async def _take(
    member: Member,
    number: int,
    index: int,
    bucket: StoredBucket | SentBucket,
    round_: WeightRound,
    before: asyncio.Task[None] | None,
) -> None:
    """Gives the engine a bucket; returns once it is loaded. The engine's time for it begins when the task `before` has ended."""
    seconds = bucket_seconds(bucket.nbytes, direct=isinstance(bucket, SentBucket))
    taking = asyncio.ensure_future(member.actor.take_weights.remote(number, index, bucket))
    del bucket
    try:
        if before is not None:
            await asyncio.wait([before, taking], return_when=asyncio.FIRST_COMPLETED)
        async with asyncio.timeout(seconds):
            await taking
    except TimeoutError:
        raise TooSlow(f"engine {member.name} has held a bucket for {seconds:.0f} s") from None
    finally:
        taking.cancel()
    await round_.loaded(member.name, index)


def _no_verdict(member: Member, publication: WeightPublication, seconds: float) -> TooSlow:
    return TooSlow(f"engine {member.name} has no verdict on version {publication.version} after {seconds:.0f} s")


def bucket_seconds(nbytes: int, *, direct: bool) -> float:
    """Returns how long an engine may hold a bucket of so many bytes; if it is broadcast, the workers have a deadline first (pure)."""
    return BUCKET_SECONDS + nbytes / LEAST_BYTES_PER_SECOND + (WORKER_SECONDS if direct else 0.0)


def _give_up(member: Member, number: int, reason: str) -> None:
    """Tells an engine that no more buckets come; nobody waits for its answer."""

    async def notify() -> None:
        with suppress(RayError, EngineDead):
            await member.actor.give_up_weights.remote(number, reason)

    task = asyncio.ensure_future(notify())
    _notices.add(task)
    task.add_done_callback(_notices.discard)
