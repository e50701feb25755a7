"""The one queue of keys to plan for: a schedule that workers wait on."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Hashable
from typing import Generic

from longboat_operator.schedule import K, Schedule, TokenBucket, backoff_seconds

# A thousand jobs that change their demand for pods every 20 s take some 400 plans a second, most of them without a request.
RATE_PER_SECOND = 600.0
BURST = 600


class WorkQueue(Generic[K]):
    """Takes keys from all that see a change, and hands them to workers; those of one `group` share a line (`Schedule`)."""

    def __init__(
        self,
        rate: float = RATE_PER_SECOND,
        burst: int = BURST,
        clock: Callable[[], float] = time.monotonic,
        group: Callable[[K], Hashable] = lambda _: None,
    ) -> None:
        self._clock = clock
        self._schedule = Schedule(group)
        self._bucket = TokenBucket(rate, burst)
        self._failures: dict[K, int] = {}
        self._waiters: deque[asyncio.Future[None]] = deque()
        self._closed = False

    def add(self, key: K) -> None:
        """Asks for work on the key now; if it is in work, for more afterwards."""
        self._schedule.add(key, self._clock())
        self._wake()

    def add_within(self, key: K, seconds: float) -> None:
        """Asks for work on the key within `seconds`; a timer that ends earlier stays."""
        self._schedule.add_by(key, self._clock() + seconds)
        self._wake()

    def add_after(self, key: K, seconds: float | None) -> None:
        """Sets the key's timer: asks for work in `seconds`, whatever it was set to before. None: no timer."""
        if seconds is None:
            self._schedule.cancel(key)
        else:
            self._schedule.add_at(key, self._clock() + seconds)
            self._wake()

    def failed(self, key: K) -> float:
        """Counts another consecutive failure; returns how long to wait before the next try."""
        self._failures[key] = self._failures.get(key, 0) + 1
        return backoff_seconds(self._failures[key])

    def hold_back(self, seconds: float) -> None:
        """Hands out no key for so long."""
        self._bucket.close_until(self._clock() + seconds)

    def succeeded(self, key: K) -> None:
        """Ends a series of failures."""
        self._failures.pop(key, None)

    def done(self, key: K) -> None:
        """Notes that work on the key has ended."""
        self._schedule.done(key, self._clock())
        self._wake()

    def close(self) -> None:
        """Makes `get` return None from now on."""
        self._closed = True
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def get(self) -> K | None:
        """Takes the next key, as soon as there is one and the rate allows it; None once the queue is closed."""
        while not self._closed:
            now = self._clock()
            tokens_in = self._bucket.wait_seconds(now)
            if tokens_in == 0.0 and (key := self._schedule.take(now)) is not None:
                self._bucket.take(now)
                if self._schedule.ready(now):
                    self._wake()
                return key
            if self._schedule.ready(now):
                await self._sleep(tokens_in)
            else:
                timer = self._schedule.next_timer()
                await self._sleep(None if timer is None else timer - now)
        return None

    @property
    def stalled_seconds(self) -> float:
        """Returns how long no work has ended although keys wait for it (`Schedule.stalled`)."""
        return self._schedule.stalled(self._clock())

    @property
    def depth(self) -> int:
        """Keys that wait, not counting timers."""
        return self._schedule.depth()

    @property
    def oldest_seconds(self) -> float:
        """Longest time that a key has been waiting or in work."""
        return self._schedule.oldest(self._clock())

    def idle(self, seconds: float) -> bool:
        """Whether no key waits or is in work, and no timer ends within so many seconds."""
        return self._schedule.idle(self._clock() + seconds)

    async def _sleep(self, seconds: float | None) -> None:
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        try:
            async with asyncio.timeout(seconds):
                await waiter
        except TimeoutError:
            return
        finally:
            if waiter in self._waiters:
                self._waiters.remove(waiter)

    def _wake(self) -> None:
        """Wakes one worker; one that takes a key and leaves another wakes the next."""
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return
