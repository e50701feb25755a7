"""Runs a pure function in a process of its own, at the lowest priority.

In a thread it would hold the interpreter lock and delay the driver's messages.
"""

from __future__ import annotations

import asyncio
import os
import pickle
import sys
from asyncio.subprocess import PIPE
from collections.abc import Callable
from typing import TypeVar

from longboat_runtime import prctl

T = TypeVar("T")

_LOWEST = 19


class BackgroundFailed(Exception):
    """The process ended without a result; its error is on standard error."""


async def in_background(work: Callable[[], T]) -> T:
    """Returns the result of `work`; both are pickled. Kills the process if cancelled. Raises BackgroundFailed."""
    process = await asyncio.create_subprocess_exec(sys.executable, "-m", __spec__.name, stdin=PIPE, stdout=PIPE)
    try:
        output, _ = await process.communicate(pickle.dumps(work))
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode:
        raise BackgroundFailed(f"exit status {process.returncode}")
    result: T = pickle.loads(output)  # noqa: S301 - this module wrote it
    return result


def main() -> None:
    """Reads pickled work from standard input and writes its result to standard output."""
    prctl.die_with_parent()
    os.nice(_LOWEST)
    work = pickle.load(sys.stdin.buffer)  # noqa: S301 - `in_background` wrote it
    pickle.dump(work(), sys.stdout.buffer)


if __name__ == "__main__":
    main()
