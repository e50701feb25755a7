"""Coroutines that run in the background, and waits for what they change."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any


class BackgroundTasks:
    """Runs coroutines in the background, and has others wait for what they change. The first error ends all waits, now and later."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()
        self._failure: BaseException | None = None
        self._news = asyncio.Event()

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Runs the coroutine until it ends or `close` cancels it."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.fail(error)

    def tell(self) -> None:
        """Has all waits in `until` look at their conditions again."""
        self._news.set()

    def fail(self, failure: BaseException) -> None:
        """Ends all waits, now and later, by this error, unless an earlier one has."""
        self._failure = self._failure or failure
        self.tell()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Waits for a condition that changes only with `tell`. Unless it holds, raises the failure, if any."""
        while not condition():
            if self._failure is not None:
                raise self._failure
            self._news.clear()
            await self._news.wait()

    async def close(self) -> None:
        """Cancels all tasks, and returns once they have ended."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
