"""Work in a background process."""

from __future__ import annotations

import asyncio
import os
from functools import partial
from pathlib import Path

import pytest

from longboat_runtime.driver.background_process import BackgroundFailed, in_background
from tests.support.waiting import eventually_async


@pytest.fixture
def pipe(tmp_path: Path) -> Path:
    """Makes a named pipe: whoever reads it waits for what a test writes."""
    made = tmp_path / "pipe"
    os.mkfifo(made)
    return made


async def writing_end(pipe: Path, reading: asyncio.Task[str]) -> int:
    """Opens the pipe for writing once somebody reads it."""

    def opened() -> int:
        assert not reading.done(), reading
        try:
            return os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
        except OSError:  # nobody reads it yet
            return 0

    return await eventually_async(opened)


async def test_the_result_is_returned_and_the_loop_runs_meanwhile(pipe: Path) -> None:
    reading = asyncio.create_task(in_background(partial(Path.read_text, pipe)))
    end = await writing_end(pipe, reading)
    os.write(end, b"17")
    os.close(end)
    assert await reading == "17"


async def test_it_has_the_lowest_priority() -> None:
    assert await in_background(partial(os.nice, 0)) == 19


async def test_an_error_in_the_process_is_raised_here(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(BackgroundFailed, match="exit status 1"):
        await in_background(partial(divmod, 1, 0))
    assert "ZeroDivisionError" in capfd.readouterr().err


async def test_it_ends_if_its_caller_is_cancelled(pipe: Path) -> None:
    reading = asyncio.create_task(in_background(partial(Path.read_text, pipe)))
    end = await writing_end(pipe, reading)
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    with pytest.raises(BrokenPipeError):
        os.write(end, b"17")  # nobody reads any more
    os.close(end)
