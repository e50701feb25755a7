"""How tests wait: for what they expect, and with what they saw last if it never comes."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.support import lint_waits, waiting
from tests.support.waiting import NeverHappenedError, eventually, eventually_async

PLANTED = """
import asyncio, subprocess, time
from asyncio import sleep, timeout as limit
from time import sleep as pause

async def test_that_a_slow_machine_breaks():
    time.sleep(0.1)
    pause(2)
    await sleep(0.5)
    await asyncio.sleep(seconds)
    async with limit(30):
        await asyncio.wait_for(task, 60)
    subprocess.run(["true"], timeout=300)
    assert time.monotonic() - begun < 3
    await asyncio.sleep(0)
    subprocess.run(["true"], timeout=DEADLINE_SECONDS)
    PROGRAM = "import time; time.sleep(1e6)"
    clock = time.perf_counter_ns
    ended.wait(3)
    process.communicate(None, 5)
    assert ", ".join(words) == "1, 2" and job.wait("it runs", job.pods)
"""
LINES = {7: "time.sleep", 8: "time.sleep", 9: "asyncio.sleep", 10: "asyncio.sleep", 11: "asyncio.timeout"}
LINES |= {12: "asyncio.wait_for", 13: "subprocess.run(300)", 14: "time.monotonic"}
LINES |= {18: "time.perf_counter_ns", 19: "ended.wait(3)", 20: "process.communicate(5)"}


def test_every_way_to_wait_by_the_clock_is_rejected() -> None:
    offences = lint_waits.offences(Path("test_planted.py"), PLANTED)
    assert {offence.line: offence.expression for offence in offences} == LINES


def test_a_file_with_such_a_wait_fails_the_lint(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "test_planted.py"
    file.write_text(PLANTED)
    assert lint_waits.main([file]) == 1
    assert f"{file}:7: time.sleep: wait with `eventually`" in capsys.readouterr().out


def test_a_wait_ends_as_soon_as_the_condition_is_true() -> None:
    numbers = iter(range(10))
    assert eventually(lambda: next(numbers), lambda number: number == 3) == 3
    assert next(numbers) == 4


async def test_an_asynchronous_wait_ends_as_soon_as_the_condition_is_true() -> None:
    looks = Counter[str]()

    async def look() -> int:
        looks["all"] += 1
        return looks["all"]

    assert await eventually_async(look, lambda number: number == 3) == 3
    assert await eventually_async(lambda: looks["all"]) == 3


def test_a_wait_whose_condition_never_comes_says_what_it_saw_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "DEADLINE_SECONDS", 0.05)
    with pytest.raises(NeverHappenedError, match=r"not within 0\.05 s; last seen: \{'phase': 'Pending'\}"):
        eventually(lambda: {"phase": "Pending"}, lambda status: status["phase"] == "Running")


async def test_so_does_an_asynchronous_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "DEADLINE_SECONDS", 0.05)
    with pytest.raises(NeverHappenedError, match=r"last seen: 1$"):
        await eventually_async(lambda: 1, lambda number: number == 2)


def test_what_goes_wrong_while_waiting_is_raised_at_once() -> None:
    with pytest.raises(ZeroDivisionError):
        eventually(lambda: 1 // 0)


def test_a_method_that_cannot_compare_is_no_answer() -> None:
    """NotImplemented, which `"x".__eq__` returns for None, is true."""
    with pytest.raises(TypeError, match="cannot judge None"):
        eventually(lambda: None, "Running".__eq__)
