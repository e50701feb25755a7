"""Waiting for what a test expects, however slow or busy the machine is.

A test waits for the thing itself with one of these two helpers, never for a time that seemed long enough. The deadline is only there so that
a condition that never comes is reported; it costs nothing when tests pass. `tests.support.lint_waits` rejects other ways to wait.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from inspect import isawaitable
from typing import TypeVar

T = TypeVar("T")

DEADLINE_SECONDS = 600.0

# Seconds between two looks: a tenth of what has been waited so far, within these.
_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.005, 0.25


class NeverHappenedError(AssertionError):
    """A condition that a test waited for did not become true; the message has what was seen last."""


def eventually(look: Callable[[], T], right: Callable[[T], object] = bool) -> T:
    """Calls `look` until `right` accepts its value, and returns that value.

    What either raises is raised at once. Raises NeverHappenedError after `DEADLINE_SECONDS`.
    """
    for pause in _pauses():
        seen = look()
        if _accepts(right, seen):
            return seen
        time.sleep(pause)
    raise _never_happened(seen)


async def eventually_async(look: Callable[[], T | Awaitable[T]], right: Callable[[T], object] = bool) -> T:
    """Does as `eventually`, and lets other tasks run meanwhile; `look` may be asynchronous."""
    for pause in _pauses():
        seen = look()
        if isawaitable(seen):
            seen = await seen
        if _accepts(right, seen):
            return seen
        await asyncio.sleep(pause)
    raise _never_happened(seen)


def _accepts(right: Callable[[T], object], seen: T) -> bool:
    """Returns the answer of `right`; raises TypeError where there is none: NotImplemented would be true."""
    answer = right(seen)
    if answer is NotImplemented:
        raise TypeError(f"{right!r} cannot judge {seen!r}; use functools.partial(operator.eq, ...)")
    return bool(answer)


def _pauses() -> Iterator[float]:
    """Yields the seconds to pause after each look, until the deadline has passed."""
    begun = time.monotonic()
    waited = 0.0
    while waited < DEADLINE_SECONDS:
        yield min(max(_SHORTEST_PAUSE, waited / 10), _LONGEST_PAUSE)
        waited = time.monotonic() - begun


def _never_happened(seen: object) -> NeverHappenedError:
    return NeverHappenedError(f"not within {DEADLINE_SECONDS:g} s; last seen: {seen!r}")
