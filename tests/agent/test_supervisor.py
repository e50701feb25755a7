"""A child and everything that comes from it, with real processes."""

import asyncio
import os
import signal
import sys
import textwrap
from collections.abc import Callable, Coroutine
from typing import Any

from longboat_runtime.agent.descendants import descendants
from longboat_runtime.agent.supervisor import Supervisor


def program(source: str) -> list[str]:
    return [sys.executable, "-c", textwrap.dedent(source)]


def in_process(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Runs the test in a process of its own: a supervisor adopts, reaps and kills whatever descends from its process."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            asyncio.run(test())
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


# Starts a process that starts another and ends, so that the last is an orphan; all but the first ignore SIGTERM.
FAMILY = """
import os, signal, sys, time
if os.fork() == 0:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.setsid()
    if os.fork() != 0:
        os._exit(0)
    time.sleep(1e6)
os.wait()
print("ready", file=sys.stderr, flush=True)
time.sleep(1e6)
"""


async def until(condition: Any) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 - /proc tells nobody
            await asyncio.sleep(0.01)


def test_end_kills_orphans_too() -> None:
    async def test() -> None:
        supervisor = Supervisor()
        supervisor.start(program(FAMILY))
        await until(lambda: supervisor.last_lines == ["ready"] and len(descendants()) == 2)
        await supervisor.end()
        assert descendants() == set()
        assert supervisor.exit_code == -signal.SIGKILL
        assert not supervisor.running

    in_process(test)


def test_drain_asks_first_and_kills_what_is_deaf() -> None:
    async def test() -> None:
        supervisor = Supervisor()
        supervisor.start(program(FAMILY))
        await until(lambda: supervisor.last_lines == ["ready"] and len(descendants()) == 2)
        await supervisor.drain(grace=0.3)
        assert descendants() == set()
        assert supervisor.exit_code == -signal.SIGTERM

    in_process(test)


def test_the_end_of_a_child_is_told_with_its_last_words() -> None:
    async def test() -> None:
        supervisor = Supervisor()
        for code in (3, 0):
            supervisor.start(program(f"import sys; print('cause', file=sys.stderr); sys.exit({code})"))
            await asyncio.wait_for(supervisor.exited.wait(), 60)
            assert supervisor.exit_code == code
            await until(lambda: supervisor.last_lines == ["cause"])
        assert supervisor.restarts == 1

    in_process(test)


def test_orphans_are_reaped() -> None:
    async def test() -> None:
        supervisor = Supervisor()
        supervisor.start(
            program(
                """
                import os, time
                for _ in range(50):
                    if os.fork() == 0:
                        if os.fork() != 0: os._exit(0)
                        time.sleep(0.05)
                        os._exit(0)
                    os.wait()
                time.sleep(1e6)
                """
            )
        )
        await until(lambda: len(descendants()) > 2)
        await until(lambda: len(descendants()) == 1)
        await supervisor.end()

    in_process(test)
