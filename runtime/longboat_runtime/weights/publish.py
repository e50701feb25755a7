"""Full tensors as buckets in this process's memory."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from longboat_runtime.weights.bucket import BUCKET_BYTES, buckets
from longboat_runtime.weights.checksum import checksum_of
from longboat_runtime.weights.payload import Packed


def pack(named_tensors: Iterable[tuple[str, torch.Tensor]], bucket_bytes: int = BUCKET_BYTES) -> Packed:
    """Packs full tensors into buckets in this process's memory (a second copy of the model)."""
    contents = tuple(buckets(named_tensors, bucket_bytes))
    return Packed(contents, checksum_of(digest for bucket in contents for digest in bucket.digests()))
