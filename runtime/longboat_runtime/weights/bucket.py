"""Flat buckets of tensors, so that a publication moves in a few large pieces instead of thousands of small ones.

Drivers hand publications on without torch: only what makes tensors or reads them imports it.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from longboat_runtime.weights.checksum import ByteArray, tensor_digest

if TYPE_CHECKING:
    import torch

# As others have measured: moving weights tensor by tensor takes minutes, in buckets of about this size seconds.
BUCKET_BYTES = 512 * 1024 * 1024
# Tensors start at multiples of this, so that a view of the bucket is aligned for every dtype.
ALIGNMENT = 64

# A bucket read from Ray's object store or a file is read-only; the views made of it are only read.
warnings.filterwarnings("ignore", message="The given NumPy array is not writable")


class TensorEntry(NamedTuple):
    """Locates one tensor in its bucket. `dtype` is torch's name without the prefix, such as `bfloat16`."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class Bucket:
    """Tensors side by side in one array of bytes (shape [bytes])."""

    entries: tuple[TensorEntry, ...]
    data: ByteArray

    def tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yields name and tensor of each: a view of `data`, only to be read, and valid as long as that is."""
        import torch

        return tensors_in(self.entries, torch.from_numpy(self.data))

    def digests(self) -> list[bytes]:
        """Computes the digests of the tensors, in order."""
        return [tensor_digest(entry.name, entry.dtype, entry.shape, self._bytes_of(entry)) for entry in self.entries]

    def _bytes_of(self, entry: TensorEntry) -> ByteArray:
        return self.data[entry.offset : entry.offset + entry.nbytes]


def tensors_in(entries: Iterable[TensorEntry], flat: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
    """Yields name and tensor of each entry: a view of `flat`, the bytes of a bucket, on any device."""
    import torch

    for entry in entries:
        own = flat[entry.offset : entry.offset + entry.nbytes]
        yield entry.name, own.view(getattr(torch, entry.dtype)).reshape(entry.shape)


def buckets(named_tensors: Iterable[tuple[str, torch.Tensor]], limit: int = BUCKET_BYTES) -> Iterator[Bucket]:
    """Fills buckets of at most `limit` bytes with the tensors in their order; one larger tensor gets a bucket of its own.

    Tensors may be on any device; each is copied before the next is requested.
    """
    import torch

    entries: list[TensorEntry] = []
    data = torch.empty(0, dtype=torch.uint8)
    filled = 0
    for name, tensor in named_tensors:
        nbytes = tensor.numel() * tensor.element_size()
        if entries and filled + nbytes > limit:
            yield Bucket(tuple(entries), data[:filled].numpy())
            entries, filled = [], 0
        if not entries:
            data = torch.empty(max(limit, nbytes), dtype=torch.uint8)  # pages that stay untouched cost nothing
        data[filled : filled + nbytes].view(tensor.dtype).copy_(tensor.detach().reshape(-1))
        dtype = str(tensor.dtype).removeprefix("torch.")
        entries.append(TensorEntry(name, dtype, tuple(tensor.shape), filled, nbytes))
        filled += -(-nbytes // ALIGNMENT) * ALIGNMENT
    if entries:
        yield Bucket(tuple(entries), data[:filled].numpy())
