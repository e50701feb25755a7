"""Time of an event loop that a test advances, instead of waiting."""

from __future__ import annotations

import asyncio


def pass_time(seconds: float) -> None:
    """Advances the clock of the running event loop: what was to happen meanwhile happens now."""
    loop = asyncio.get_running_loop()
    real = loop.time
    loop.time = lambda: real() + seconds  # type: ignore[method-assign]
