"""The trainer does one thing at a time, in the order of steps."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from enum import IntEnum

Work = Callable[[], Awaitable[None]]


class Task(IntEnum):
    """What there is to do for one step, in this order; all of it comes before the next step."""

    TRAIN = 0
    PUBLISH = 1
    SAVE = 2
    REPORT = 3


class TrainerQueue:
    """Runs work one at a time: lowest step first, then by task, then as it came."""

    def __init__(self) -> None:
        self._queue: asyncio.PriorityQueue[tuple[int, Task, int, Work]] = asyncio.PriorityQueue()
        self._count = 0
        self._rest = asyncio.Event()
        self._rest.set()
        self.current: Task | None = None

    def put(self, step: int, task: Task, work: Work) -> None:
        """Queues work."""
        self._count += 1
        self._queue.put_nowait((step, task, self._count, work))

    async def run(self) -> None:
        """Works forever; an error in the work ends it."""
        while True:
            _, self.current, _, work = await self._queue.get()
            self._rest.clear()
            await work()
            self.current = None
            self._rest.set()

    def clear(self) -> None:
        """Forgets what hasn't begun."""
        while not self._queue.empty():
            self._queue.get_nowait()

    async def rest(self) -> None:
        """Returns once the present work is done."""
        await self._rest.wait()
