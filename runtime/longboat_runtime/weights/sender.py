"""A trainer rank's part of the published weights, in host memory: filled by each publication, and handed out from there.

So buckets travel while others are still gathered, and engines that come later get exactly the published version while the rank trains.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from longboat_runtime.weights.bucket import Bucket, tensors_in
from longboat_runtime.weights.layout import BucketLayout
from longboat_runtime.weights.publication import PublicationGone

if TYPE_CHECKING:
    import torch


class WeightSender:
    """Holds the buckets of `layout` that sender number `index` sends, in memory that is allocated once and that every version overwrites.

    `allocate` returns as many bytes as it is given. One thread fills; others read. A bucket that is being read isn't overwritten.
    """

    def __init__(self, layout: Sequence[BucketLayout], index: int, allocate: Callable[[int], torch.Tensor]) -> None:
        self._layout = layout
        self._memory = {
            number: allocate(bucket.nbytes) for number, bucket in enumerate(layout) if bucket.sender == index
        }
        self._changed = threading.Condition()
        self._version: int | None = None
        # The digests of the tensors of each bucket of the version that has been filled.
        self._digests: dict[int, list[bytes]] = {}
        self._readers = dict.fromkeys(self._memory, 0)

    @property
    def nbytes(self) -> int:
        """The bytes of host memory."""
        return sum(memory.nbytes for memory in self._memory.values())

    @property
    def digests(self) -> dict[int, list[bytes]]:
        """The digests of the tensors of each bucket that has been filled, by number."""
        return dict(self._digests)

    def begin(self, version: int | None) -> None:
        """Begins a version, whose buckets are then filled. Earlier ones can no longer be read; without a version, neither can these."""
        with self._changed:
            self._version, self._digests = version, {}
            self._changed.notify_all()

    @contextmanager
    def filling(self, number: int) -> Iterator[list[torch.Tensor]]:
        """Yields the places of a bucket's tensors, to be filled in the block. Waits for readers of what was there."""
        with self._changed:
            self._changed.wait_for(lambda: not self._readers[number])
        yield [place for _, place in tensors_in(self._layout[number].entries, self._memory[number])]
        digests = self._bucket(number).digests()
        with self._changed:
            self._digests[number] = digests
            self._changed.notify_all()

    @contextmanager
    def reading(self, version: int, number: int) -> Iterator[tuple[Bucket, list[bytes]]]:
        """Yields a bucket, to be read in the block, with the digests of its tensors. Waits until it has been gathered.

        Raises PublicationGone if `version` isn't the one that was begun last.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._version != version or number in self._digests)
            if self._version != version:
                raise PublicationGone(f"version {version} has been replaced by version {self._version}")
            self._readers[number] += 1
            digests = self._digests[number]
        try:
            yield self._bucket(number), digests
        finally:
            with self._changed:
                self._readers[number] -= 1
                self._changed.notify_all()

    def _bucket(self, number: int) -> Bucket:
        return Bucket(self._layout[number].entries, self._memory[number].numpy())
