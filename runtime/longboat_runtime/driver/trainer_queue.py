"""The trainer does one thing at a time, in the order of steps."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from enum import IntEnum

Work = Callable[[], Awaitable[None]]


class Task(IntEnum):
    """The tasks of one step, in this order; all of them come before the next step."""

    STREAM = 0
    TRAIN = 1
    PUBLISH = 2
    SAVE = 3
    EXPORT = 4
    REPORT = 5


class TrainerQueue:
    """Runs one piece of work at a time: lowest step first, then by task, then first come, first served."""

    def __init__(self) -> None:
        self._queue: asyncio.PriorityQueue[tuple[int, Task, int, Work]] = asyncio.PriorityQueue()
        self._count = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._closed = False
        self.current: Task | None = None

    def put(self, step: int, task: Task, work: Work) -> None:
        """Queues work, unless the queue is closed."""
        if self._closed:
            return
        self._count += 1
        self._queue.put_nowait((step, task, self._count, work))

    async def run(self) -> None:
        """Runs queued work forever; an error in the work ends it."""
        while True:
            _, self.current, _, work = await self._queue.get()
            self._idle.clear()
            await work()
            self.current = None
            self._idle.set()

    def close(self) -> None:
        """Drops work that hasn't begun, and all that comes later."""
        self._closed = True
        while not self._queue.empty():
            self._queue.get_nowait()

    async def idle(self) -> None:
        """Waits until the current work is done."""
        await self._idle.wait()
