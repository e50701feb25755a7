"""Buckets on their way into an engine: the driver hands them to its actor, and the engine's thread takes them, one after another."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future

from longboat_runtime.weights.bucket import Bucket
from longboat_runtime.weights.gate import FetchFailed
from longboat_runtime.weights.payload import SentBucket


class Incoming:
    """The `WeightPayload` of one update. `load`, `conclude` and `fail` are called on the actor's loop, the others in the engine's thread.

    An engine may take all buckets once more, from the first, after it has seen the checksum: to find out what differs.
    """

    def __init__(self, buckets: int) -> None:
        self.count = buckets
        self._changed = threading.Condition()
        self._waiting: dict[int, tuple[Bucket | SentBucket, Future[None]]] = {}
        self._taken: Future[None] | None = None
        self._checksum: str | None = None
        self._concluded: Future[bool] | None = None
        self._failure: FetchFailed | None = None

    # On the actor's loop

    async def load(self, number: int, bucket: Bucket | SentBucket) -> None:
        """Offers a bucket; returns once the engine has loaded it, and no longer needs its bytes. Raises FetchFailed if it never will."""
        loaded: Future[None] = Future()
        with self._changed:
            if self._failure is not None:
                raise self._failure
            self._waiting[number] = (bucket, loaded)
            self._changed.notify_all()
        del bucket
        await asyncio.wrap_future(loaded)

    async def conclude(self, checksum: str) -> bool:
        """Gives the engine the checksum of all buckets. Returns True once it wants them once more, False once the update has ended."""
        concluded: Future[bool] = Future()
        with self._changed:
            if self._failure is not None:
                return False
            self._checksum, self._concluded = checksum, concluded
            self._changed.notify_all()
        return await asyncio.wrap_future(concluded)

    def fail(self, reason: str) -> None:
        """Ends the update, unless it has ended: no more buckets come."""
        self._end(FetchFailed(reason))

    # In the engine's thread

    @property
    def checksum(self) -> str:
        with self._changed:
            self._release()
            self._wait_for(lambda: self._checksum is not None)
            assert self._checksum is not None
            return self._checksum

    def __len__(self) -> int:
        return self.count

    def bucket(self, index: int) -> Bucket | SentBucket:
        """Waits for a bucket. Raises FetchFailed if it won't come."""
        with self._changed:
            self._release()
            if index == 0:
                self._answer(once_more=True)
            self._wait_for(lambda: index in self._waiting)
            bucket, self._taken = self._waiting.pop(index)
            return bucket

    def close(self) -> None:
        """Releases all buckets: the update has ended."""
        self._end(FetchFailed("the update has ended"))

    def _wait_for(self, ready: Callable[[], bool]) -> None:
        """Waits until something is there. Raises the failure if the update ends first."""
        self._changed.wait_for(lambda: ready() or self._failure is not None)
        if not ready() and self._failure is not None:
            raise self._failure

    def _answer(self, *, once_more: bool) -> None:
        if self._concluded is not None:
            self._concluded.set_result(once_more)
            self._concluded = None

    def _release(self) -> None:
        if self._taken is not None:
            self._taken.set_result(None)
            self._taken = None

    def _end(self, failure: FetchFailed) -> None:
        with self._changed:
            self._failure = self._failure or failure
            unneeded = [loaded for _, loaded in self._waiting.values()]
            self._waiting.clear()
            for loaded in unneeded:
                loaded.set_exception(self._failure)
            self._release()
            self._answer(once_more=False)
            self._changed.notify_all()
