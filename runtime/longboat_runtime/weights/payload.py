"""Buckets of a publication in an engine's process (`WeightPublication.payload`), fetched one after another."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from longboat_runtime.weights.bucket import Bucket, TensorEntry
from longboat_runtime.weights.gate import FetchFailed

if TYPE_CHECKING:
    import ray

log = logging.getLogger(__name__)

# How many times a bucket is requested, and the first pause between two tries in seconds, which doubles. That is enough for a short loss of
# the network.
FETCH_TRIES = 4
FETCH_SECONDS = 0.5


class WeightPayload(Protocol):
    """Buckets of all tensors in the trainer's order."""

    @property
    def checksum(self) -> str:
        """The checksum of all tensors, once the last bucket has been fetched."""

    def __len__(self) -> int:
        """Returns the number of buckets, at least one."""

    def bucket(self, index: int) -> Bucket | SentBucket:
        """Fetches a bucket. Earlier ones may be released or overwritten from then on."""


@dataclass(frozen=True, slots=True)
class StoredBucket:
    """A bucket whose bytes are in Ray's object store, which moves them once to every node and shares them with all engines there."""

    entries: tuple[TensorEntry, ...]
    data: ray.ObjectRef

    @property
    def nbytes(self) -> int:
        return sum(entry.nbytes for entry in self.entries)

    async def fetch(self) -> Bucket:
        """Fetches the bytes to this node. Raises FetchFailed after FETCH_TRIES tries."""
        for number in itertools.count(1):
            try:
                return Bucket(self.entries, await self.data)
            except Exception as error:
                if number == FETCH_TRIES:
                    raise FetchFailed(f"a bucket can't be fetched: {error}") from error
                log.warning("a bucket can't be fetched: %s; trying again", error)
                await asyncio.sleep(FETCH_SECONDS * 2 ** (number - 1))
        raise AssertionError


@dataclass(frozen=True, slots=True)
class SentBucket:
    """A bucket that sender number `sender` broadcasts to all workers of a pod's engines, which each receive it by themselves."""

    entries: tuple[TensorEntry, ...]
    nbytes: int
    sender: int

    async def fetch(self) -> SentBucket:
        """Fetches nothing."""
        return self


def fetched(payload: WeightPayload) -> Iterator[Bucket | SentBucket]:
    """Returns the buckets. The first is fetched at once, so that lost weights are noticed before anything is changed.

    The others are fetched when they are taken. Raises FetchFailed, at once or then, if a bucket can't be fetched.
    """
    first = _fetch(payload, 0)
    return itertools.chain([first], (_fetch(payload, index) for index in range(1, len(payload))))


def _fetch(payload: WeightPayload, index: int) -> Bucket | SentBucket:
    try:
        return payload.bucket(index)
    except FetchFailed:
        raise
    except Exception as error:
        raise FetchFailed(f"bucket {index + 1} of {len(payload)} can't be fetched: {error}") from error
