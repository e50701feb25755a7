"""Decides which tensors travel in which bucket of a publication, and which rank sends it. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from longboat_runtime.weights.bucket import ALIGNMENT, BUCKET_BYTES, TensorEntry

# A publication has about so many buckets for each sender, so that they can be shared out evenly and travel one behind another.
BUCKETS_PER_SENDER = 16
# The least limit of a bucket's size: each bucket costs some milliseconds.
LEAST_BUCKET_BYTES = 2**20


class TensorKind(NamedTuple):
    """Describes a tensor of the published model. `dtype` is torch's name without the prefix, such as `bfloat16`."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    nbytes: int


@dataclass(frozen=True, slots=True)
class BucketLayout:
    """Describes a bucket: where its tensors are, and the numbers of the units that they come from. `sender` is an index of senders."""

    sender: int
    entries: tuple[TensorEntry, ...]
    nbytes: int
    units: tuple[int, ...]


def lay_out(units: Sequence[Sequence[TensorKind]], senders: int, limit: int | None = None) -> tuple[BucketLayout, ...]:
    """Fills buckets with the tensors in their order, and gives each, the largest first, to the sender that has the fewest bytes by then.

    A unit is the tensors that are gathered together; all go into one bucket, which has more than `limit` bytes only if it is a single unit.
    The default limit is that of `bucket_limit`. The number of senders changes nothing about the order of tensors.
    """
    if limit is None:
        limit = bucket_limit(sum(kind.nbytes for unit in units for kind in unit), senders)
    filled: list[list[int]] = []
    size = 0
    for number, unit in enumerate(units):
        nbytes = sum(aligned(kind.nbytes) for kind in unit)
        if not filled or size + nbytes > limit:
            filled.append([])
            size = 0
        filled[-1].append(number)
        size += nbytes
    contents = []
    for numbers in filled:
        entries, offset = [], 0
        for kind in (kind for number in numbers for kind in units[number]):
            entries.append(TensorEntry(kind.name, kind.dtype, kind.shape, offset, kind.nbytes))
            offset += aligned(kind.nbytes)
        contents.append((tuple(entries), offset, tuple(numbers)))
    loads, sender_of = [0] * senders, dict[int, int]()
    for number in sorted(range(len(contents)), key=lambda number: -contents[number][1]):
        sender_of[number] = loads.index(min(loads))
        loads[sender_of[number]] += contents[number][1]
    return tuple(BucketLayout(sender_of[number], *content) for number, content in enumerate(contents))


def bucket_limit(total: int, senders: int) -> int:
    """Returns the most bytes of a bucket of a publication of `total` bytes."""
    return max(LEAST_BUCKET_BYTES, min(BUCKET_BYTES, total // (BUCKETS_PER_SENDER * senders)))


def largest_bucket(shapes: Mapping[str, Sequence[int]], itemsize: int, senders: int) -> int:
    """Returns the bytes of the largest bucket of a model whose files have tensors of these `shapes`, or a little more.

    `itemsize` is the bytes of a value. All experts of a layer count as one unit.
    """
    units: dict[str, int] = {}
    for name, shape in shapes.items():
        unit = name.partition(".experts.")[0] if ".experts." in name else name
        units[unit] = units.get(unit, 0) + aligned(math.prod(shape) * itemsize)
    return max(bucket_limit(sum(units.values()), senders), *units.values()) if units else 0


def aligned(nbytes: int) -> int:
    """Returns the bytes that a tensor takes of its bucket."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def sender_ranks(ranks: int, ranks_per_pod: int) -> list[int]:
    """Returns the trainer's ranks that send: the first rank of each pod, which has the pod's network for itself."""
    return [*range(0, ranks, ranks_per_pod)]
