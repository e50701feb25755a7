from __future__ import annotations

import asyncio

import pytest

from longboat_runtime.rollout.background import BackgroundTasks


async def test_a_wait_ends_when_its_condition_holds() -> None:
    tasks, done = BackgroundTasks(), []

    async def work() -> None:
        await asyncio.sleep(0)
        done.append(1)
        tasks.tell()

    tasks.spawn(work())
    await tasks.until(lambda: bool(done))


async def test_the_first_error_ends_all_waits_but_those_for_what_holds() -> None:
    tasks = BackgroundTasks()

    async def fail() -> None:
        raise ValueError("the cause")

    waiting = asyncio.create_task(tasks.until(lambda: False))
    tasks.spawn(fail())
    with pytest.raises(ValueError, match="the cause"):
        await waiting
    tasks.fail(KeyError("what follows from it"))
    with pytest.raises(ValueError, match="the cause"):
        await tasks.until(lambda: False)
    await tasks.until(lambda: True)


async def test_closing_cancels_what_runs_which_is_no_error() -> None:
    tasks = BackgroundTasks()
    task = tasks.spawn(tasks.until(lambda: False))
    await tasks.close()
    assert task.cancelled()
    await tasks.until(lambda: True)
