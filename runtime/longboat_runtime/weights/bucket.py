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
        return [
            tensor_digest(name, dtype, shape, self.data[offset : offset + nbytes])
            for name, dtype, shape, offset, nbytes in self.entries
        ]


def tensors_in(entries: Iterable[TensorEntry], flat: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
    """Yields name and tensor of each entry: a view of `flat`, the bytes of a bucket, on any device."""
    import torch

    for entry in entries:
        own = flat[entry.offset : entry.offset + entry.nbytes]
        yield entry.name, own.view(getattr(torch, entry.dtype)).reshape(entry.shape)
