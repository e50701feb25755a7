"""Waits for what a test expects, however slow or busy the machine is.

A test waits for the condition itself with one of these two helpers, never for a time that seemed long enough. The deadline only makes sure
that a condition that never comes true is reported; it costs nothing when tests pass. `tests.support.lint_waits` rejects other ways to wait.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from inspect import isawaitable
from typing import TypeVar

T = TypeVar("T")

DEADLINE_SECONDS = 600.0

# Seconds between two looks: a tenth of the time waited so far, within these bounds.
_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.005, 0.25


class NeverHappenedError(AssertionError):
    """A condition that a test waited for did not become true; the message has what was seen last."""


def eventually(look: Callable[[], T], right: Callable[[T], object] = bool) -> T:
    """Calls `look` until `right` accepts its value, and returns that value.

    Exceptions of either are raised at once. Raises NeverHappenedError if a look after `DEADLINE_SECONDS` isn't accepted either.
    """
    for pause in _pauses():
        value = look()
        if isawaitable(value):
            raise TypeError(f"{look!r} is asynchronous; use eventually_async")
        if _accepts(right, value):
            return value
        time.sleep(pause)
    raise _never_happened(value)


async def eventually_async(look: Callable[[], T | Awaitable[T]], right: Callable[[T], object] = bool) -> T:
    """Waits like `eventually` while other tasks run; `look` may be asynchronous."""
    for pause in _pauses():
        value = look()
        if isawaitable(value):
            value = await value
        if _accepts(right, value):
            return value
        await asyncio.sleep(pause)
    raise _never_happened(value)


def _accepts(right: Callable[[T], object], value: T) -> bool:
    """Returns whether `right` accepts the value; raises TypeError for NotImplemented and for coroutines, which would count as true."""
    answer = right(value)
    if answer is NotImplemented or isawaitable(answer):
        raise TypeError(f"{right!r} cannot judge {value!r}: it returned {answer!r}")
    return bool(answer)


def _pauses() -> Iterator[float]:
    """Yields the seconds to pause after each look. The last look comes after the deadline, however long this process was stopped."""
    begun = time.monotonic()
    waited = 0.0
    while waited < DEADLINE_SECONDS:
        yield min(max(_SHORTEST_PAUSE, waited / 10), _LONGEST_PAUSE)
        waited = time.monotonic() - begun
    yield 0.0


def _never_happened(value: object) -> NeverHappenedError:
    return NeverHappenedError(f"not within {DEADLINE_SECONDS:g} s; last seen: {value!r}")
