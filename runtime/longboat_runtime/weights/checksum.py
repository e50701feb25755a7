"""Checksum of a model's weights. Pure.

The rule: XXH3 (128 bits, seed 0) of each tensor, over a header of its name, dtype and shape, then its bytes; and over these digests, in
the trainer's order. So several ranks can digest a publication together. Headers are length-prefixed, so no two different tensors feed
the hash the same bytes. It guards against stale, lost, doubled, reordered and damaged tensors, not against an attacker.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt
import xxhash

ByteArray = npt.NDArray[np.uint8]


def tensor_digest(name: str, dtype: str, shape: Sequence[int], data: ByteArray) -> bytes:
    """Computes the digest of one tensor; `data` is its content as a contiguous 1-D array of bytes."""
    digest = xxhash.xxh3_128()
    header = f"{name}\0{dtype}\0{','.join(str(n) for n in shape)}".encode()
    digest.update(len(header).to_bytes(8, "little"))
    digest.update(header)
    digest.update(data.nbytes.to_bytes(8, "little"))
    digest.update(data.data)
    return digest.digest()


def checksum_of(digests: Iterable[bytes]) -> str:
    """Computes the checksum of tensors with these digests, in the trainer's order."""
    return xxhash.xxh3_128(b"".join(digests)).hexdigest()
