"""The order rows are drawn in: one permutation an epoch, and a cursor that can be kept in a checkpoint. Pure.

A job resumed by another version of Longboat, numpy or Python has to see the same order. So nothing here rests on a shuffle
of a library, whose algorithm may change: keys are the raw 64-bit output of PCG64 (its stream is part of numpy's
compatibility promise, `Generator.permutation` is not), and rows are sorted by key.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from longboat_runtime.samples import PromptId


@lru_cache(maxsize=2)
def permutation(seed: int, epoch: int, rows: int) -> npt.NDArray[np.int64]:
    """Row numbers 0..rows-1 in the order of `epoch`; int64 of shape (rows,).

    Every (seed, epoch) has its own PCG64 stream, seeded by blake2b; equal keys keep row order.
    """
    digest = hashlib.blake2b(f"longboat-order/{seed}/{epoch}".encode(), digest_size=16).digest()
    keys = np.random.PCG64(int.from_bytes(digest, "big")).random_raw(rows)
    order = np.argsort(keys, kind="stable").astype(np.int64)
    order.setflags(write=False)
    return order


@dataclass(frozen=True, slots=True)
class Cursor:
    """The next row to draw: `position` counts drawn rows of `epoch`."""

    epoch: int = 0
    position: int = 0


@dataclass(frozen=True, slots=True)
class Order:
    """How `rows` rows are drawn: shuffled by `seed`, or as they stand when `shuffle` is off."""

    rows: int
    seed: int
    shuffle: bool = True

    def epoch(self, number: int) -> npt.NDArray[np.int64]:
        """All row numbers in the order of an epoch; int64 of shape (rows,)."""
        return permutation(self.seed, number, self.rows) if self.shuffle else np.arange(self.rows)

    def draw(
        self, cursor: Cursor, count: int, members: npt.NDArray[np.bool_] | None = None
    ) -> tuple[list[PromptId], Cursor]:
        """The next `count` prompts and the cursor after them. Every epoch gives each row exactly once.

        Only rows of which `members` [rows] is true are drawn, in the same order among themselves; at least one is.
        """
        drawn: list[PromptId] = []
        epoch, position = cursor.epoch, cursor.position
        size = self.rows if members is None else np.count_nonzero(members)
        while len(drawn) < count:
            if position == size:
                epoch, position = epoch + 1, 0
            order = self.epoch(epoch)
            own = order if members is None else order[members[order]]
            chunk = own[position : position + count - len(drawn)]
            drawn += [PromptId(epoch, int(row)) for row in chunk]
            position += len(chunk)
        return drawn, Cursor(epoch, position)
