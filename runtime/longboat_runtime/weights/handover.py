"""Buckets as a file in shared memory, for workers that are processes of their own."""

from __future__ import annotations

import itertools
import os
from typing import TYPE_CHECKING, Self

from longboat_runtime.object_store import SHARED_MEMORY
from longboat_runtime.weights.gate import FetchFailed
from longboat_runtime.weights.handover_files import PREFIX

if TYPE_CHECKING:
    from longboat_runtime.weights.bucket import Bucket

_numbers = itertools.count()


class HandoverFile:
    """A file in shared memory that buckets are written into, one after another, until it is left.

    A bucket must have been loaded before the next is written: the same pages are used again.
    """

    def __init__(self) -> None:
        self._path = SHARED_MEMORY / f"{PREFIX}{os.getpid()}-{next(_numbers)}"
        self._size = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._path.unlink(missing_ok=True)

    def write(self, bucket: Bucket) -> str:
        """Writes a bucket's bytes and returns the file's path. Raises FetchFailed if /dev/shm has no room for them."""
        size = len(bucket.data)
        try:
            with self._path.open("r+b" if self._size else "xb") as file:
                if size > self._size:
                    # A write into a hole that can't be filled would kill the process.
                    os.posix_fallocate(file.fileno(), 0, size)
                    self._size = size
                file.write(bucket.data.data)
        except OSError as error:
            raise FetchFailed(
                f"{SHARED_MEMORY} has no room to hand a bucket of {size} bytes to an engine's workers ({error.strerror}); enlarge it, the "
                "volume `shm` of rollout pods in the runtime template"
            ) from error
        return str(self._path)
