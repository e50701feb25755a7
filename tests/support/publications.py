"""Publications without a trainer: buckets of this process, put into Ray's object store as a trainer's sender does."""

from __future__ import annotations

from dataclasses import dataclass

import ray

from longboat_runtime.weights.payload import Packed, StoredBucket


@dataclass(frozen=True, slots=True)
class PackedSource:
    """The `WeightSource` of packed tensors."""

    packed: Packed
    checksum: str

    trainer: tuple[str, ...] = ()

    @property
    def nbytes(self) -> int:
        return self.packed.nbytes

    def __len__(self) -> int:
        return len(self.packed)

    async def bucket(self, number: int) -> StoredBucket:
        bucket = self.packed.bucket(number)
        return StoredBucket(bucket.entries, ray.put(bucket.data))


def stored(packed: Packed) -> PackedSource:
    return PackedSource(packed, packed.checksum)
