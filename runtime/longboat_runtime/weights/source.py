"""Gets the buckets of a publication from the trainer's senders: the driver passes references on, never data."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Protocol

from ray.exceptions import RayError, RayTaskError

from longboat_runtime.weights.checksum import checksum_of
from longboat_runtime.weights.layout import BucketLayout
from longboat_runtime.weights.payload import SentBucket, StoredBucket


class WeightSource(Protocol):
    """The buckets of all tensors of one version, in the trainer's order."""

    @property
    def nbytes(self) -> int: ...

    def __len__(self) -> int:
        """Returns the number of buckets, at least one."""

    async def bucket(self, number: int) -> StoredBucket:
        """Has a bucket put into Ray's object store, once it has been gathered. It stays as long as someone holds what is returned.

        Raises RayError if its sender is gone, PublicationGone if another version has replaced this one.
        """

    @property
    def checksum(self) -> str:
        """The checksum of all tensors, once each bucket has been put or sent."""

    @property
    def trainer(self) -> tuple[str, ...]:
        """Identifies the senders that broadcast; empty if there are none."""

    async def versions(self) -> list[Mapping[str, str]]:
        """Returns `weights.groups.versions` of each sender."""

    async def open_groups(self, key: str) -> dict[int, str]:
        """Has each sender serve the store of a new group; returns the stores' addresses by sender."""

    async def join_groups(self, key: str, addresses: Mapping[int, str], size: int, seconds: float) -> None:
        """Has each sender join its group, of `size` processes. Raises RuntimeError if the others don't come within `seconds`."""

    async def leave_groups(self, key: str) -> None:
        """Ends the groups; does nothing where there is none."""

    def sent(self, number: int) -> SentBucket:
        """Describes a bucket to the workers that `send` broadcasts it to."""

    async def send(self, number: int, keys: Sequence[str]) -> list[str]:
        """Has a bucket broadcast to these groups, once it has been gathered; returns the keys of those that were left behind.

        Raises as `bucket` does.
        """


class TrainerSource:
    """The `WeightSource` of a trainer whose `senders` are actors like `trainer.actor.TrainerActor`."""

    def __init__(self, version: int, layout: Sequence[BucketLayout], senders: Sequence[Any]) -> None:
        self._version, self._layout, self._senders = version, layout, senders
        self._digests: dict[int, list[bytes]] = {}

    @property
    def nbytes(self) -> int:
        return sum(bucket.nbytes for bucket in self._layout)

    def __len__(self) -> int:
        return len(self._layout)

    async def bucket(self, number: int) -> StoredBucket:
        sender = self._senders[self._layout[number].sender]
        self._digests[number], [data] = await actor_result(sender.bucket.remote(self._version, number))
        return StoredBucket(self._layout[number].entries, data)

    @property
    def trainer(self) -> tuple[str, ...]:
        return tuple(sender._actor_id.hex() for sender in self._senders)

    async def versions(self) -> list[Mapping[str, str]]:
        return await self._all("group_versions")

    async def open_groups(self, key: str) -> dict[int, str]:
        return dict(enumerate(await self._all("open_group", key)))

    async def join_groups(self, key: str, addresses: Mapping[int, str], size: int, seconds: float) -> None:
        joining = [
            actor_result(sender.join_group.remote(key, addresses[number], size, seconds))
            for number, sender in enumerate(self._senders)
        ]
        await asyncio.gather(*joining)

    async def leave_groups(self, key: str) -> None:
        with suppress(RayError):
            await self._all("leave_group", key)

    def sent(self, number: int) -> SentBucket:
        bucket = self._layout[number]
        return SentBucket(bucket.entries, bucket.nbytes, bucket.sender)

    async def send(self, number: int, keys: Sequence[str]) -> list[str]:
        sender = self._senders[self._layout[number].sender]
        self._digests[number], failed = await actor_result(sender.send.remote(self._version, number, keys))
        return list(failed)

    async def _all(self, method: str, *arguments: Any) -> list[Any]:
        return await asyncio.gather(
            *(actor_result(getattr(sender, method).remote(*arguments)) for sender in self._senders)
        )

    @property
    def checksum(self) -> str:
        return checksum_of(digest for number in range(len(self)) for digest in self._digests[number])


async def actor_result(answer: Any) -> Any:
    """Returns what an actor returned, or raises what it raised, without Ray's wrapping. Raises RayActorError if the actor is gone."""
    try:
        return await answer
    except RayTaskError as error:
        raise error.cause from error
