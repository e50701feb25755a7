"""Work in a background process."""

from __future__ import annotations

import asyncio
import os
import time
from functools import partial

import pytest

from longboat_runtime.driver.background_process import BackgroundFailed, in_background


async def test_the_result_is_returned_and_the_loop_runs_meanwhile() -> None:
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0.01)
            turns += 1

    counting = asyncio.create_task(count())
    assert await in_background(partial(divmod, 17, 5)) == (3, 2)
    counting.cancel()
    assert turns > 3


async def test_it_has_the_lowest_priority() -> None:
    assert await in_background(partial(os.nice, 0)) == 19


async def test_an_error_in_the_process_is_raised_here(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(BackgroundFailed, match="exit status 1"):
        await in_background(partial(divmod, 1, 0))
    assert "ZeroDivisionError" in capfd.readouterr().err


async def test_it_ends_if_its_caller_is_cancelled() -> None:
    began = time.monotonic()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(in_background(partial(time.sleep, 60)), 1)
    assert time.monotonic() - began < 30
