"""Work in a background process."""

from __future__ import annotations

import asyncio
import os
import time
from functools import partial
from pathlib import Path

import pytest

from longboat_runtime.driver.background_process import BackgroundFailed, in_background


async def test_the_result_is_returned_and_the_loop_runs_meanwhile(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)

    async def write() -> None:
        while True:
            try:
                end = os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
            except OSError:  # the process doesn't read yet
                await asyncio.sleep(0.01)
                continue
            os.write(end, b"17")
            os.close(end)
            return

    result, _ = await asyncio.gather(in_background(partial(Path.read_text, pipe)), write())
    assert result == "17"


async def test_it_has_the_lowest_priority() -> None:
    assert await in_background(partial(os.nice, 0)) == 19


async def test_an_error_in_the_process_is_raised_here(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(BackgroundFailed, match="exit status 1"):
        await in_background(partial(divmod, 1, 0))
    assert "ZeroDivisionError" in capfd.readouterr().err


async def test_it_ends_if_its_caller_is_cancelled() -> None:
    began = time.monotonic()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(in_background(partial(time.sleep, 600)), 1)
    assert time.monotonic() - began < 300
