"""Checksum of a model's weights. Pure.

The rule: XXH3 (128 bits, seed 0) over all tensors in the order they come; for each tensor a header of its name, dtype and
shape, then its bytes. Headers are length-prefixed, so no two different sequences of tensors feed the hash the same bytes.
It guards against stale, lost, reordered and damaged tensors, not against an attacker.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import xxhash

ByteArray = npt.NDArray[np.uint8]


class WeightChecksum:
    """Feeds tensors one by one; `hexdigest` gives the checksum of those fed so far."""

    def __init__(self) -> None:
        self._hash = xxhash.xxh3_128()

    def add(self, name: str, dtype: str, shape: Sequence[int], data: ByteArray) -> None:
        """Feeds one tensor; `data` is its content as a contiguous 1-D array of bytes."""
        header = f"{name}\0{dtype}\0{','.join(str(n) for n in shape)}".encode()
        self._hash.update(len(header).to_bytes(8, "little"))
        self._hash.update(header)
        self._hash.update(data.nbytes.to_bytes(8, "little"))
        self._hash.update(data.data)

    def hexdigest(self) -> str:
        return self._hash.hexdigest()
