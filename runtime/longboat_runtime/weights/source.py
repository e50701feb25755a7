"""Where the driver gets the buckets of a publication: from the trainer's senders. It passes references on, never data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

from longboat_runtime.weights.checksum import checksum_of
from longboat_runtime.weights.layout import BucketLayout
from longboat_runtime.weights.payload import StoredBucket

if TYPE_CHECKING:
    from ray.actor import ActorHandle


class WeightSource(Protocol):
    """The buckets of all tensors of one version, in the trainer's order."""

    @property
    def nbytes(self) -> int: ...

    def __len__(self) -> int:
        """Returns the number of buckets, at least one."""

    async def bucket(self, number: int) -> StoredBucket:
        """Has a bucket put into Ray's object store, once it has been gathered. It is there as long as someone holds what is returned.

        Raises RayError if its sender is gone, PublicationGone if another version has replaced this one.
        """

    @property
    def checksum(self) -> str:
        """The checksum of all tensors, once each bucket has been there."""


class TrainerSource:
    """The `WeightSource` of a trainer whose `senders` are actors like `trainer.actor.TrainerActor`."""

    def __init__(self, version: int, layout: Sequence[BucketLayout], senders: Sequence[ActorHandle]) -> None:
        self._version, self._layout, self._senders = version, layout, senders
        self._digests: dict[int, list[bytes]] = {}

    @property
    def nbytes(self) -> int:
        return sum(bucket.nbytes for bucket in self._layout)

    def __len__(self) -> int:
        return len(self._layout)

    async def bucket(self, number: int) -> StoredBucket:
        from ray.exceptions import RayTaskError

        bucket = self._layout[number]
        sender: Any = self._senders[bucket.sender]
        try:
            self._digests[number], [data] = await sender.bucket.remote(self._version, number)
        except RayTaskError as error:
            raise error.cause from error
        return StoredBucket(bucket.entries, data)

    @property
    def checksum(self) -> str:
        return checksum_of(digest for number in range(len(self)) for digest in self._digests[number])
