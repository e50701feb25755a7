"""The order in which rows are drawn: one permutation per epoch, and a cursor that a checkpoint can hold. Pure.

A job resumed by another version of Longboat, numpy or Python has to see the same order. So nothing here relies on a library's
shuffle, whose algorithm may change: keys are the raw 64-bit output of PCG64 (its stream is part of numpy's compatibility
promise, `Generator.permutation` is not), and rows are sorted by key.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

import numpy as np
import numpy.typing as npt

from longboat_runtime.samples import PromptId


@lru_cache(maxsize=2)
def permutation(seed: int, epoch: int, rows: int) -> npt.NDArray[np.int64]:
    """Returns the row numbers 0..rows-1 in the order of `epoch`; int64 of shape (rows,).

    Every (seed, epoch) has its own PCG64 stream, seeded by blake2b; rows with equal keys keep their order.
    """
    digest = hashlib.blake2b(f"longboat-order/{seed}/{epoch}".encode(), digest_size=16).digest()
    keys = np.random.PCG64(int.from_bytes(digest, "big")).random_raw(rows)
    order = np.argsort(keys, kind="stable").astype(np.int64)
    order.setflags(write=False)
    return order


@dataclass(frozen=True, slots=True)
class Cursor:
    """The next row to draw: `position` is the number of rows already drawn in `epoch`."""

    epoch: int = 0
    position: int = 0


@dataclass(frozen=True, slots=True)
class Order:
    """The order of `rows` rows: shuffled by `seed`, or the order of the table if `shuffle` is off."""

    rows: int
    seed: int
    shuffle: bool = True

    def epoch(self, number: int) -> npt.NDArray[np.int64]:
        """Returns all row numbers in the order of epoch `number`; int64 of shape (rows,)."""
        return permutation(self.seed, number, self.rows) if self.shuffle else np.arange(self.rows)

    def draw(self, cursor: Cursor, count: int) -> tuple[list[PromptId], Cursor]:
        """Draws the next `count` prompts over all rows; returns them and the cursor after them; see `draw`."""
        return draw(self, cursor, count)


class Rows(Protocol):
    """Rows to draw from: the same number in every epoch, at least one."""

    def epoch(self, number: int) -> npt.NDArray[np.int64]:
        """Returns the row numbers in the order of epoch `number`."""


class RowSubset:
    """The rows for which `members` [rows] is true, in the order of all rows. Caches the order of the last epoch requested."""

    def __init__(self, order: Order, members: npt.NDArray[np.bool_]) -> None:
        self._order, self._members = order, members
        self._kept: tuple[int, npt.NDArray[np.int64]] | None = None

    def epoch(self, number: int) -> npt.NDArray[np.int64]:
        """See `Rows`."""
        if self._kept is None or self._kept[0] != number:
            order = self._order.epoch(number)
            self._kept = number, order[self._members[order]]
        return self._kept[1]


def draw(rows: Rows, cursor: Cursor, count: int) -> tuple[list[PromptId], Cursor]:
    """Draws the next `count` prompts; returns them and the cursor after them. Every epoch draws each row exactly once."""
    drawn: list[PromptId] = []
    epoch, position = cursor.epoch, cursor.position
    while len(drawn) < count:
        order = rows.epoch(epoch)
        if position == len(order):
            epoch, position = epoch + 1, 0
            continue
        chunk = order[position : position + count - len(drawn)]
        drawn += [PromptId(epoch, int(row)) for row in chunk]
        position += len(chunk)
    return drawn, Cursor(epoch, position)
