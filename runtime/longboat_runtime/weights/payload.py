"""Defines `WeightPublication.payload`: a way for an engine's process to get the buckets, one after another."""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from longboat_runtime.weights.bucket import Bucket, TensorEntry
from longboat_runtime.weights.gate import FetchFailed

if TYPE_CHECKING:
    import ray

log = logging.getLogger(__name__)

# How often a bucket is requested, with a pause in seconds that doubles: enough for a short loss of the network.
FETCH_TRIES = 4
FETCH_SECONDS = 0.5


class WeightPayload(Protocol):
    """Buckets of all tensors in the trainer's order."""

    @property
    def nbytes(self) -> int: ...

    @property
    def checksum(self) -> str:
        """The checksum of all tensors, once the last bucket has been fetched."""

    def __len__(self) -> int:
        """Returns the number of buckets, at least one."""

    def bucket(self, index: int) -> Bucket:
        """Fetches one; it may be released before the next is requested."""


@dataclass(frozen=True, slots=True)
class Packed:
    """Buckets at hand in this process, and the checksum of their tensors."""

    contents: tuple[Bucket, ...]
    checksum: str

    @property
    def nbytes(self) -> int:
        return sum(len(bucket.data) for bucket in self.contents)

    def __len__(self) -> int:
        return len(self.contents)

    def bucket(self, index: int) -> Bucket:
        return self.contents[index]


@dataclass(frozen=True, slots=True)
class StoredBucket:
    """A bucket whose bytes are in Ray's object store."""

    entries: tuple[TensorEntry, ...]
    data: ray.ObjectRef


@dataclass(frozen=True, slots=True)
class Stored:
    """Buckets in Ray's object store, which moves each once to every node and shares it with all engines there without a copy.

    They live as long as the process that put them (a trainer rank) lives and anyone holds this payload.
    """

    contents: tuple[StoredBucket, ...]
    nbytes: int
    checksum: str

    def __len__(self) -> int:
        return len(self.contents)

    def bucket(self, index: int) -> Bucket:
        import ray

        stored = self.contents[index]
        return Bucket(stored.entries, ray.get(stored.data))


def fetched(payload: WeightPayload) -> Iterator[Bucket]:
    """Returns the buckets. The first is fetched at once, so that lost weights are noticed before anything is changed.

    The others are fetched as they are taken. Raises FetchFailed, at once or then, if `FETCH_TRIES` tries for a bucket fail.
    """
    first = _fetch(payload, 0)
    return itertools.chain([first], (_fetch(payload, index) for index in range(1, len(payload))))


def _fetch(payload: WeightPayload, index: int) -> Bucket:
    for number in itertools.count(1):
        try:
            return payload.bucket(index)
        except Exception as error:
            what = f"bucket {index + 1} of {len(payload)} can't be fetched: {error}"
            if number == FETCH_TRIES:
                raise FetchFailed(what) from error
            log.warning("%s; trying again", what)
            time.sleep(FETCH_SECONDS * 2 ** (number - 1))
    raise AssertionError
