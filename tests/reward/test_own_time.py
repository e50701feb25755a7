"""Limits of own seconds: what a grade waits for a CPU isn't its own, whatever else it does is. Real processes that compute, sleep and fork."""

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import pytest_asyncio

from longboat_crds.rewards import RewardSpec
from longboat_runtime.reward.client import GraderClient
from longboat_runtime.reward.graders.times import OwnTime, Slowdown, waiting_is_counted
from longboat_runtime.reward.result import FunctionOutcome, OutcomeKind, RewardSample

# Computes for so many CPU seconds, by its own clock.
BURN = "import time\nend = time.process_time() + {}\nwhile time.process_time() < end: pass\n"
FUNCTIONS = """
import subprocess, sys, threading, time

def run(sample):
    scope = {}
    exec(sample.text, scope)
    return 1.0

def stay(sample):
    kind, _, seconds = sample.text.partition(" ")
    if kind == "sleep":
        time.sleep(float(seconds))
    else:
        end = time.process_time() + float(seconds)
        while time.process_time() < end: pass
    return 1.0
"""
# A program that starts another, and waits for it.
STARTS = "import subprocess, sys\nsubprocess.run([sys.executable, '-S', '-c', {!r}])\n"
# How many other processes want each CPU.
CROWD = 4


@contextmanager
def crowded() -> Iterator[None]:
    """Every CPU is wanted by CROWD other processes."""
    endless = [sys.executable, "-S", "-c", "while True: pass"]
    burners = [subprocess.Popen(endless) for _ in range(CROWD * (os.cpu_count() or 1))]
    try:
        yield
    finally:
        for burner in burners:
            burner.kill()
        for burner in burners:
            burner.wait()


@pytest_asyncio.fixture
async def client(graders: Path) -> AsyncIterator[GraderClient]:
    client = GraderClient(graders)
    yield client
    await client.close()


@pytest_asyncio.fixture
async def loaded(client: GraderClient, graders_directory: Path) -> GraderClient:
    path = graders_directory / "own_time.py"
    path.write_text(FUNCTIONS)
    for name, isolation in (("run", "PerGrade"), ("stay", "Auto")):
        reward = RewardSpec.model_validate({"name": name, "function": f"{path}:{name}", "isolation": isolation})
        assert await client.load(reward, "spec.rewards[0]") is None
    return client


async def grade(client: GraderClient, name: str, text: str, own: float | None, hard: float = 60.0) -> FunctionOutcome:
    return await client.grade(name, RewardSample(text, ""), hard, 0, own)


def test_this_kernel_counts_waiting() -> None:
    """All that the project supports do. If it doesn't, the tests below show what that costs."""
    assert waiting_is_counted()


@pytest.mark.parametrize(("name", "text"), [("run", BURN.format(60)), ("stay", "burn 60")])
async def test_one_that_computes_is_killed_at_its_limit(loaded: GraderClient, name: str, text: str) -> None:
    outcome = await grade(loaded, name, text, 0.3)
    assert (outcome.kind, outcome.limited) == (OutcomeKind.TIMEOUT, True)
    assert outcome.message == "killed after 0.3 s, the limit that was learned"
    assert outcome.own_seconds is not None
    assert outcome.own_seconds > 0.3
    assert outcome.cpu_seconds > 0.0


@pytest.mark.parametrize(("name", "text"), [("run", "import time; time.sleep(60)"), ("stay", "sleep 60")])
async def test_one_that_sleeps_is_killed_too(loaded: GraderClient, name: str, text: str) -> None:
    outcome = await grade(loaded, name, text, 0.3)
    assert (outcome.kind, outcome.limited) == (OutcomeKind.TIMEOUT, True)
    assert outcome.own_seconds is not None
    assert outcome.own_seconds > 0.3
    assert outcome.cpu_seconds < outcome.own_seconds


async def test_programs_that_a_response_starts_count(loaded: GraderClient) -> None:
    outcome = await grade(loaded, "run", STARTS.format(BURN.format(60)), 0.5)
    assert (outcome.kind, outcome.limited) == (OutcomeKind.TIMEOUT, True)
    ended = await grade(loaded, "run", STARTS.format(BURN.format(0.2)), 60.0)
    assert (ended.kind, ended.limited) == (OutcomeKind.SCORED, False)
    assert ended.cpu_seconds >= 0.2


@pytest.mark.parametrize(("name", "text"), [("run", BURN.format(0.3)), ("stay", "burn 0.3")])
async def test_a_busy_node_kills_nobody(loaded: GraderClient, name: str, text: str) -> None:
    with crowded():
        outcome = await grade(loaded, name, text, 1.0)
    assert outcome.kind is OutcomeKind.SCORED, outcome
    assert outcome.own_seconds is not None
    assert outcome.own_seconds <= 1.0 < outcome.seconds


@pytest.mark.parametrize(("programs", "seconds"), [(1, 0.4), (10, 0.01)])
async def test_nor_one_that_starts_programs_there(loaded: GraderClient, programs: int, seconds: float) -> None:
    """What they take is learned on an idle node, their own start included, whatever that takes on this machine."""
    text = STARTS.format(BURN.format(seconds)) * programs
    idle = await grade(loaded, "run", text, 60.0)
    assert idle.own_seconds is not None
    limit = 2 * idle.own_seconds
    with crowded():
        outcome = await grade(loaded, "run", text, limit)
    assert outcome.kind is OutcomeKind.SCORED, outcome
    assert outcome.seconds > limit


async def test_a_sleeper_goes_on_a_busy_node_as_well(loaded: GraderClient) -> None:
    with crowded():
        outcome = await grade(loaded, "stay", "sleep 60", 0.3)
    assert (outcome.kind, outcome.limited) == (OutcomeKind.TIMEOUT, True)


async def test_the_hard_limit_is_told_apart_and_stays_on_the_wall(loaded: GraderClient) -> None:
    for own in (None, 20.0):
        outcome = await grade(loaded, "run", "import time; time.sleep(60)", own, hard=0.3)
        assert (outcome.kind, outcome.limited) == (OutcomeKind.TIMEOUT, False)
        assert outcome.message == "killed after 0.3 s"
        assert (outcome.own_seconds is None) == (own is None)


async def test_a_kill_ends_nothing_but_its_grade(loaded: GraderClient) -> None:
    grading = [grade(loaded, "stay", text, 0.3) for text in ("sleep 60", "sleep 0", "burn 60", "sleep 0")]
    outcomes = await asyncio.gather(*grading)
    assert [outcome.kind for outcome in outcomes] == [OutcomeKind.TIMEOUT, OutcomeKind.SCORED] * 2
    assert (await grade(loaded, "stay", "sleep 0", 0.3)).kind is OutcomeKind.SCORED


def test_children_that_have_ended_are_remembered() -> None:
    own = OwnTime(os.getpid(), Slowdown(), alone=False, counted=True)
    before = own.cpu_seconds
    subprocess.run([sys.executable, "-S", "-c", BURN.format(0.2)], check=True)
    assert own.cpu_seconds - before >= 0.19  # in ticks
    assert own.look() >= own.cpu_seconds - 0.05


def test_the_newest_counts_most_for_the_slowdown_of_a_node() -> None:
    slowdown = Slowdown()
    assert slowdown.factor == 1.0
    for _ in range(20):
        slowdown.learn(0.1, 0.3)
    assert slowdown.factor == pytest.approx(4.0)
    for _ in range(50):
        slowdown.learn(0.1, 0.0)
    assert slowdown.factor < 1.1


def test_where_waiting_is_not_counted_the_slowdown_of_the_node_stands_in() -> None:
    slowdown = Slowdown()
    slowdown.learn(0.1, 0.3)
    own = OwnTime(os.getpid(), slowdown, alone=True, counted=False)
    began = time.monotonic()
    time.sleep(0.4)
    assert 0.4 / 4 <= own.look() <= (time.monotonic() - began) / 2
    assert not own.may_wait
