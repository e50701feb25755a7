"""Advances the time of an event loop, so that tests need not wait."""

from __future__ import annotations

import asyncio


def pass_time(seconds: float) -> None:
    """Advances the clock of the running event loop: what is scheduled for this time happens now."""
    loop = asyncio.get_running_loop()
    real = loop.time
    loop.time = lambda: real() + seconds  # type: ignore[method-assign]
