"""Commands that other threads give to the one thread that owns an engine."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")


class Commands:
    """Applied one after another, in the order they were given, by the owner's thread."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._waited_for: set[Future] = set()
        self._end: Exception | None = None

    def give(self, command: Callable[[], None]) -> None:
        """Does not wait. What the command raises ends the owner. Raises the reason if the owner has ended."""
        with self._lock:
            if self._end is not None:
                raise self._end
            self._queue.put(command)

    def call(self, command: Callable[[], T], expected: type[Exception]) -> T:
        """Waits for the command's result. What it raises is raised here too, and ends the owner unless it is `expected`."""
        future: Future[T] = Future()

        def run() -> None:
            with self._lock:
                self._waited_for.discard(future)
            try:
                future.set_result(command())
            except expected as error:
                future.set_exception(error)
            except BaseException as error:
                future.set_exception(error)
                raise

        with self._lock:
            if self._end is not None:
                raise self._end
            self._waited_for.add(future)
            self._queue.put(run)
        return future.result()

    def apply(self, *, wait: bool) -> None:
        """Applies all commands that are there; with `wait` waits for one first."""
        if wait:
            self._queue.get()()
        while not self._queue.empty():
            self._queue.get()()

    def end(self, reason: Exception) -> None:
        """The owner ends: whoever waits, or comes later, gets `reason`."""
        with self._lock:
            self._end = reason
            for future in self._waited_for:
                future.set_exception(reason)
            self._waited_for.clear()
