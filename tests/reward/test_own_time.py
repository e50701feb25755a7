"""Limits of own seconds: what a grade waits for a CPU isn't its own, whatever else it does is. Real processes that compute, sleep and fork."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
import pytest_asyncio

from longboat_crds.rewards import RewardSpec
from longboat_runtime.reward.client import GraderClient
from longboat_runtime.reward.graders.process_tree import children
from longboat_runtime.reward.graders.supervised import Grading, Supervised
from longboat_runtime.reward.graders.times import (
    STARVED,
    OwnLimit,
    OwnTime,
    Slowdown,
    cpu_clock,
    waited_here,
    waiting_is_counted,
)
from longboat_runtime.reward.result import FunctionOutcome, OutcomeKind, RewardSample
from tests.reward.conftest import graded, process_state, running_graders

# Computes for so many CPU seconds, by its own clock.
BURN = "import time\nend = time.process_time() + {}\nwhile time.process_time() < end: pass\n"
FUNCTIONS = """
import os, subprocess, sys, threading, time

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
    if kind == "leave":
        os.environ["LEFT"] = "something"
    return 1.0
"""
# A program that starts another, and waits for it.
STARTS = "import subprocess, sys\nsubprocess.run([sys.executable, '-S', '-c', {!r}])\n"
# How many other processes want each CPU.
CROWD = 4


@contextmanager
def crowded() -> Iterator[None]:
    """Every CPU that this process may use is wanted by CROWD others, which may use no other CPU either."""
    endless = [sys.executable, "-S", "-c", "print(flush=True)\nwhile True: pass"]
    burners = [subprocess.Popen(endless, stdout=subprocess.PIPE) for _ in range(CROWD * len(os.sched_getaffinity(0)))]
    try:
        for burner in burners:
            assert burner.stdout is not None
            burner.stdout.readline()
        yield
    finally:
        for burner in burners:
            burner.kill()
        for burner in burners:
            burner.communicate()


@pytest_asyncio.fixture
async def client(graders: Path) -> AsyncIterator[GraderClient]:
    client = GraderClient(graders)
    yield client
    await client.close()


@pytest_asyncio.fixture
async def loaded(client: GraderClient, graders_directory: Path) -> GraderClient:
    await load(client, graders_directory)
    return client


async def load(client: GraderClient, directory: Path) -> None:
    path = directory / "own_time.py"
    path.write_text(FUNCTIONS)
    for name, isolation in (("run", "PerGrade"), ("stay", "Auto")):
        reward = RewardSpec.model_validate({"name": name, "function": f"{path}:{name}", "isolation": isolation})
        assert await client.load(reward, "spec.rewards[0]") is None


def computing(server: int) -> int | None:
    """A process that grades and has used 0.1 s of CPU."""
    found = (pid for zygote in children(server) for pid in children(zygote))
    return next((pid for pid in found if cpu_clock(pid) > 0.1), None)


async def grade(client: GraderClient, name: str, text: str, own: float | None, hard: float = 60.0) -> FunctionOutcome:
    return await graded(client, name, RewardSample(text, ""), hard, own=own)


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
    assert ended.cpu_seconds >= 0.19  # the kernel tells those of ended processes in ticks of 10 ms


@pytest.mark.parametrize(("name", "text"), [("run", BURN.format(1.5)), ("stay", "leave 1.5")])
async def test_who_has_answered_stays_until_it_is_seen_what_it_took(tmp_path: Path, name: str, text: str) -> None:
    """These grade no more after they have answered; the server gets to see that only later."""
    pids: list[int] = []
    with running_graders(tmp_path, started=pids.append) as socket:
        client = GraderClient(socket)
        await load(client, tmp_path)
        grading = asyncio.create_task(grade(client, name, text, None))
        while (pid := computing(pids[0])) is None:
            assert not grading.done()
            await asyncio.sleep(0.001)
        os.kill(pids[0], signal.SIGSTOP)
        while process_state(pid) in {"R", "Z"}:  # noqa: ASYNC110 - until it waits, or is gone
            await asyncio.sleep(0.001)
        os.kill(pids[0], signal.SIGCONT)
        outcome = await grading
        await client.close()
    assert outcome.kind is OutcomeKind.SCORED
    assert outcome.cpu_seconds >= 1.5


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
    # Other tests may crowd the node at any time.
    idle = [(await grade(loaded, "run", text, 60.0)).own_seconds for _ in range(3)]
    limit = 3 * min(seconds for seconds in idle if seconds is not None)
    with crowded():
        outcome = await grade(loaded, "run", text, limit)
    assert outcome.kind is OutcomeKind.SCORED, outcome
    assert outcome.seconds > limit


async def test_a_sleeper_goes_on_a_busy_node_as_well(loaded: GraderClient) -> None:
    with crowded():
        outcome = await grade(loaded, "stay", "sleep 60", 0.3)
    assert (outcome.kind, outcome.limited) == (OutcomeKind.TIMEOUT, True)


@pytest.mark.parametrize(("name", "text"), [("run", BURN.format(0.3)), ("stay", "burn 0.3")])
async def test_nor_does_it_at_the_hard_limit(loaded: GraderClient, name: str, text: str) -> None:
    with crowded():
        outcome = await grade(loaded, name, text, None, hard=1.0)
    assert outcome.kind is OutcomeKind.SCORED, outcome
    assert outcome.seconds > 1.0


@pytest.mark.parametrize("text", [BURN.format(60), "import os\nwhile True: os.system('sleep 0.02')"])
async def test_what_goes_on_reaches_the_hard_limit(loaded: GraderClient, text: str) -> None:
    """One on the wall would have let the second end in time, too: what short programs have waited isn't known, but can be estimated."""
    outcome = await grade(loaded, "run", text, None, hard=1.0)
    assert (outcome.kind, outcome.limited) == (OutcomeKind.TIMEOUT, False), outcome


async def test_the_hard_limit_is_told_apart_and_sleep_counts_for_it(loaded: GraderClient) -> None:
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


@contextmanager
def burning() -> Iterator[int]:
    """The id of a process that computes when nobody else does."""
    process = subprocess.Popen(
        [
            sys.executable,
            "-S",
            "-c",
            "import os\nos.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))\nwhile True: pass",
        ]
    )
    try:
        yield process.pid
    finally:
        process.kill()
        process.wait()


def test_a_process_knows_what_it_has_waited_itself() -> None:
    before = waited_here()
    with crowded():
        while waited_here() < before + 0.05:
            pass


def test_waiting_for_a_cpu_does_not_pass_a_limit_and_running_does() -> None:
    with burning() as pid:
        own = OwnTime(pid, Slowdown(), alone=True, counted=True)
        began, limit = time.monotonic(), OwnLimit(own, 0.5)
        with crowded():
            while time.monotonic() < began + 2.0:
                assert not limit.passed()
                time.sleep(0.02)
        while not limit.passed():
            time.sleep(0.02)


class ToldTime(OwnTime):
    """Of one thread, which has run and waited for so many seconds, by what the kernel says at each look."""

    def __init__(self, looks: Iterator[tuple[float, float]], states: Iterator[bool]) -> None:
        self._looks, self._states = looks, states
        super().__init__(1, Slowdown(), counted=True, alone=True)

    def _waited(self) -> float:
        ran, waited = next(self._looks)
        self._seen = {1: (int(1e9 * ran), int(1e9 * waited))}
        self.ran = int(1e9 * ran)
        return waited

    def _cpu(self) -> tuple[float, float]:
        return self.ran / 1e9, 0.0

    @property
    def may_wait(self) -> bool:
        return next(self._states)


def test_a_wait_that_ends_between_a_look_at_it_and_one_at_its_thread_kills_nobody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """At the first look a thread waits, which the kernel tells only once it has run; then it runs, and sleeps."""
    now = [0.0]
    monkeypatch.setattr("longboat_runtime.reward.graders.times.time", SimpleNamespace(monotonic=lambda: now[0]))
    looks = [(0.0, 0.0), (0.0, 0.0), (0.1, 4.9), *[(0.1, 4.9)] * 4]
    limit = OwnLimit(ToldTime(iter(looks), iter([False] * 3)), 0.5)
    now[0] = 5.0
    assert not limit.passed()
    now[0] = 5.2
    assert not limit.passed()
    assert limit.own.elapsed == pytest.approx(0.3)
    now[0] = 5.5
    assert limit.passed()


def test_threads_that_waited_for_each_other_are_not_excused_for_what_they_do_later() -> None:
    """Sixteen compute at once on one CPU: together they wait many times as long as that takes. Then all sleep."""
    program = (
        "import os, threading, time\nos.sched_setaffinity(0, [min(os.sched_getaffinity(0))])\n"
        "for _ in range(16):\n    if os.fork() == 0:\n        while time.process_time() < 0.1: pass\n        time.sleep(1e6)\n"
        "time.sleep(1e6)"
    )
    process = subprocess.Popen([sys.executable, "-S", "-c", program], process_group=0)
    try:
        own = OwnTime(process.pid, Slowdown(), counted=True)
        limit, slept = OwnLimit(own, 1e6), None
        while slept is None or time.monotonic() < slept + 1.0:
            limit.passed()
            if slept is None and own.cpu_seconds > 1.0 and not own.may_wait:
                slept, before = time.monotonic(), own.elapsed
            time.sleep(0.02)
        own.look()
        assert own.elapsed - before > 0.5
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def supervised(grading: Grading, pid: int) -> Supervised:
    """A child that has been asked to grade, and doesn't answer."""
    ours, _ = socket.socketpair()
    child = Supervised(1, True, ours, asyncio.get_running_loop(), lambda _: None, Slowdown(), True, pid=pid)
    child.grade(grading)
    return child


def grading(timeout: float) -> Grading:
    return Grading(b"{}", timeout, 0, lambda _: None, None, lambda: None)


async def test_a_grade_that_hardly_gets_a_cpu_is_graded_again_rather_than_scored() -> None:
    """As far as its process has come, it has been there for so long."""
    child = supervised(grading(60.0), os.getpid())
    assert child.grading is not None
    began = child.grading.started
    for part in (0.5, 1.0, 0.99 * STARVED):
        assert child.overdue(began + part * 60.0) is None
    outcome = child.overdue(began + STARVED * 60.0)
    assert outcome is not None
    assert outcome.kind is OutcomeKind.GRADER_ERROR
    assert "hardly got a CPU" in outcome.message


async def test_a_quick_grade_is_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is read of its process, which would cost each grade."""
    measured: list[int] = []
    monkeypatch.setattr(OwnTime, "__init__", lambda _, pid, *args, **named: measured.append(pid))
    child = supervised(grading(30.0), os.getpid())
    assert child.grading is not None
    child.overdue(child.grading.started + 1.0)
    assert measured == []
    child.overdue(child.grading.started + 3.0)
    assert measured == [os.getpid()]


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
