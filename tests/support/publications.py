"""Publications without a trainer: buckets of this process, put into Ray's object store as a trainer's sender does.

Tests of the driver import this without torch.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import ray

from longboat_runtime.weights.bucket import BUCKET_BYTES, Bucket, tensors_in
from longboat_runtime.weights.checksum import checksum_of
from longboat_runtime.weights.layout import TensorKind, lay_out
from longboat_runtime.weights.payload import StoredBucket

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class Packed:
    """Buckets at hand in this process, and the checksum of their tensors: a `WeightPayload`."""

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
class PackedSource:
    """The `WeightSource` of packed tensors."""

    packed: Packed
    trainer: tuple[str, ...] = ()

    @property
    def checksum(self) -> str:
        return self.packed.checksum

    @property
    def nbytes(self) -> int:
        return self.packed.nbytes

    def __len__(self) -> int:
        return len(self.packed)

    async def bucket(self, number: int) -> StoredBucket:
        bucket = self.packed.bucket(number)
        return StoredBucket(bucket.entries, ray.put(bucket.data))


def tensor_kind(name: str, tensor: torch.Tensor) -> TensorKind:
    return TensorKind(name, str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), tensor.nbytes)


def pack(named_tensors: Iterable[tuple[str, torch.Tensor]], limit: int = BUCKET_BYTES) -> Packed:
    """Copies tensors into buckets of at most `limit` bytes; a larger tensor gets a bucket of its own."""
    import torch

    tensors = [*named_tensors]
    contents, remaining = [], (tensor for _, tensor in tensors)
    for bucket in lay_out([[tensor_kind(*named)] for named in tensors], 1, limit):
        data = torch.empty(bucket.nbytes, dtype=torch.uint8)
        for _, place in tensors_in(bucket.entries, data):
            place.copy_(next(remaining).detach())
        contents.append(Bucket(bucket.entries, data.numpy()))
    return Packed(tuple(contents), checksum_of(digest for bucket in contents for digest in bucket.digests()))
