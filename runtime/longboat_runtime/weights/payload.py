"""What `WeightPublication.payload` is: a way for an engine's process to get the buckets, one after another."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from longboat_runtime.weights.bucket import Bucket, TensorEntry
from longboat_runtime.weights.gate import PublicationRefused

if TYPE_CHECKING:
    import ray


class WeightPayload(Protocol):
    """Buckets of all tensors in the trainer's order."""

    @property
    def nbytes(self) -> int: ...

    def buckets(self) -> Iterator[Bucket]:
        """Gets the buckets one by one; each may be let go before the next is asked for."""


@dataclass(frozen=True, slots=True)
class Packed:
    """Buckets at hand in this process, and the checksum of their tensors."""

    contents: tuple[Bucket, ...]
    checksum: str

    @property
    def nbytes(self) -> int:
        return sum(len(bucket.data) for bucket in self.contents)

    def buckets(self) -> Iterator[Bucket]:
        yield from self.contents


@dataclass(frozen=True, slots=True)
class StoredBucket:
    """A bucket whose bytes lie in Ray's object store."""

    entries: tuple[TensorEntry, ...]
    data: ray.ObjectRef


@dataclass(frozen=True, slots=True)
class Stored:
    """Buckets in Ray's object store, which moves each once to every node and shows it to all engines there without a copy.

    They live as long as the process that put them (a trainer rank) and anybody holds this payload.
    """

    contents: tuple[StoredBucket, ...]
    nbytes: int

    def buckets(self) -> Iterator[Bucket]:
        import ray

        for stored in self.contents:
            yield Bucket(stored.entries, ray.get(stored.data))


def fetched(payload: WeightPayload) -> Iterator[Bucket]:
    """The buckets, the first of them at hand: weights whose owner has died are refused before anything is changed."""
    contents = payload.buckets()
    try:
        first = next(contents)
    except Exception as error:
        raise PublicationRefused(f"the weights can't be fetched: {error}") from error
    return itertools.chain([first], contents)
