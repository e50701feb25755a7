"""Limits of own seconds: what a grade waits for a CPU isn't its own, whatever else it does is.

How they are counted is tested on scripted readings; real programs show that what exceeds its limit is killed.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
import pytest_asyncio
from hypothesis import given
from hypothesis import strategies as st

from longboat_crds.rewards import RewardSpec
from longboat_graders.messages import FunctionOutcome, OutcomeKind
from longboat_graders.process_tree import children
from longboat_graders.result import RewardSample
from longboat_graders.supervisor import Grading, Supervised
from longboat_graders.times import (
    WALL_LIMIT_FACTOR,
    OwnLimit,
    OwnTime,
    Processes,
    Slowdown,
    cpu_clock,
    waited_here,
    waiting_is_counted,
)
from longboat_runtime.reward.client import GraderClient
from tests.reward.conftest import LONG, graded, process_state, running_graders
from tests.reward.recorded import RUNS, SLEEPS, WAITS, Recorded, State, Thread, first_passed
from tests.support.waiting import eventually, eventually_async

FUNCTIONS = """
import os, time

def run(sample):
    exec(sample.text, {})
    return 1.0

def stay(sample):
    kind, _, path = sample.text.partition(" ")
    if kind == "sleep":
        time.sleep(1e6)
    while kind == "burn":
        pass
    while kind == "leave" and not os.path.exists(path):
        pass
    if kind == "leave":
        os.environ["LEFT"] = "something"
    return 1.0
"""
BURNS, SLEEPS_ON = "while True: pass", "import time; time.sleep(1e6)"
# A program that starts another, and waits for it.
STARTS = f"import subprocess, sys\nsubprocess.run([sys.executable, '-S', '-c', {BURNS!r}])\n"


# --- What is counted ------------------------------------------------------------------------------------------------

# Five threads share the CPU.
CROWDED = [(WAITS, 0.08), (RUNS, 0.02)]
LIMITS = pytest.mark.parametrize(("hard", "learned"), [(1.0, None), (600.0, 1.0)], ids=["hard", "learned"])


def programs(count: int, waits: float, runs: float, sleeps: float = 0.0) -> list[Thread]:
    """Scripts a process that starts one program after another, each in a millisecond, and waits until it ends."""
    spans, starts = [(WAITS, waits), (RUNS, runs), (SLEEPS, sleeps)], 0.001
    seconds = starts + waits + runs + sleeps
    parent = Thread([(RUNS, starts), (SLEEPS, waits + runs + sleeps)] * count)
    return [parent, *(Thread(spans, begun=number * seconds + starts) for number in range(count))]


@LIMITS
def test_waiting_for_a_cpu_does_not_pass_a_limit_and_running_does(hard: float, learned: float | None) -> None:
    """A fifth of 5 s is its own, which the next look shows."""
    passed = first_passed(Recorded(Thread(CROWDED * 600)), hard, learned)
    assert passed is not None
    assert 5.0 <= passed <= 5.3


@LIMITS
@pytest.mark.parametrize("counted", [True, False])
@pytest.mark.parametrize("state", [SLEEPS, RUNS])
def test_what_does_not_wait_passes_its_limit_at_once(
    hard: float, learned: float | None, state: State, counted: bool
) -> None:
    passed = first_passed(Recorded(Thread([(state, 1e6)]), counted=counted), hard, learned)
    assert passed is not None
    assert 1.0 <= passed <= 1.06


@LIMITS
def test_a_sleeper_passes_its_limit_on_a_busy_node_as_well(hard: float, learned: float | None) -> None:
    passed = first_passed(Recorded(Thread([*CROWDED, (SLEEPS, 1e6)])), hard, learned, slowdown=5.0)
    assert passed is not None
    assert 1.08 <= passed <= 1.14


def test_programs_that_have_waited_unseen_are_excused_by_the_slowdown_of_the_node() -> None:
    """They take a tenth of the CPU for 6 s; between two looks each begins and ends."""
    short = Recorded(*programs(120, 0.045, 0.005))
    assert first_passed(short, 1.0, slowdown=10.0, every=0.073, until=6.0) is None
    assert first_passed(short, 1.0, slowdown=1.0, every=0.073, until=6.0) is not None


@LIMITS
def test_short_programs_without_end_reach_a_limit(hard: float, learned: float | None) -> None:
    """What they have waited isn't known, but can be estimated."""
    endless = programs(3000, 0.0, 0.004, 0.02)
    assert first_passed(Recorded(*endless), hard, learned, slowdown=2.0) is not None


@LIMITS
def test_processes_that_end_without_being_waited_for_make_nothing_shorter(hard: float, learned: float | None) -> None:
    """Nothing is known of their CPU seconds, and the process that started them sleeps meanwhile."""
    unseen = [Thread([(SLEEPS, 1e6)]), *(Thread([(SLEEPS, 0.1)], begun=0.15 * number) for number in range(100))]
    passed = first_passed(Recorded(*unseen, unseen=True), hard, learned)
    assert passed is not None
    assert passed <= 1.06


spans = st.lists(st.tuples(st.sampled_from([RUNS, WAITS, SLEEPS]), st.floats(0.001, 0.5)), max_size=30)


@given(spans, st.floats(0.1, 3.0), st.booleans(), st.floats(0.01, 0.2), st.floats(1.0, 10.0))
def test_one_thread_never_passes_a_limit_before_its_time_and_then_does_at_once(
    spans: list[tuple[State, float]], seconds: float, limited: bool, every: float, slowdown: float
) -> None:
    """At the latest when it sleeps, as it does in the end."""
    thread = Thread([*spans, (SLEEPS, 1e6)])
    hard, learned = (LONG, seconds) if limited else (seconds, None)
    passed = first_passed(Recorded(thread), hard, learned, slowdown=slowdown, every=every)
    assert passed is not None
    _, waited, _ = thread.at(passed)
    assert passed - waited >= seconds - 1e-6
    assert (
        passed <= max(thread.end - 1e6, seconds + sum(length for state, length in spans if state is WAITS)) + 2 * every
    )


def test_a_wait_that_ends_between_a_look_at_it_and_one_at_its_thread_kills_nobody() -> None:
    """At the first look a thread waits, which the kernel tells only once it has run; then it runs, and sleeps."""
    processes = Recorded(Thread([(WAITS, 4.9), (RUNS, 0.1), (SLEEPS, 1e6)]), late=0.2)
    limit = OwnLimit(OwnTime(processes, Slowdown()), 0.5)
    processes.now = 4.8
    assert not limit.passed()
    processes.now = 5.2
    assert not limit.passed()
    assert limit.own.elapsed == pytest.approx(0.3)
    processes.now = 5.5
    assert limit.passed()


def test_threads_that_waited_for_each_other_are_not_excused_for_what_they_do_later() -> None:
    """Sixteen compute at once on one CPU: together they wait many times as long as that takes. Then all sleep."""
    turn = 0.01
    threads = [
        Thread([*[(WAITS, number * turn), (RUNS, turn), (WAITS, (15 - number) * turn)] * 10, (SLEEPS, 1e6)])
        for number in range(16)
    ]
    processes = Recorded(*threads)
    limit = OwnLimit(OwnTime(processes, Slowdown()), 1e6)
    for look in range(140):
        processes.now = 0.02 * look
        limit.passed()
        if look == 90:
            before = limit.own.elapsed
    assert limit.own.elapsed - before == pytest.approx(0.98)


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
    processes = Recorded(Thread([(SLEEPS, 1e6)]), counted=False)
    own = OwnTime(processes, slowdown)
    processes.now = 0.4
    assert own.look() == pytest.approx(0.1)


# --- What the kernel says of real processes ------------------------------------------------------------------------


@contextmanager
def running(program: str) -> Iterator[int]:
    """Lends the id of a process that runs the program."""
    process = subprocess.Popen([sys.executable, "-S", "-c", program])
    try:
        yield process.pid
    finally:
        process.kill()
        process.wait()


def test_this_kernel_counts_waiting() -> None:
    """All kernels that the project supports do. If this one doesn't, the tests below show what that costs."""
    assert waiting_is_counted()


def test_a_process_knows_what_it_has_waited_itself() -> None:
    before, cpus = waited_here(), os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cpus)})
    try:
        with running(BURNS):  # on the same CPU
            eventually(waited_here, lambda waited: waited > before)
    finally:
        os.sched_setaffinity(0, cpus)


def test_what_a_process_runs_and_whether_it_could_is_read_of_its_threads() -> None:
    with running(BURNS) as burner, running(SLEEPS_ON) as sleeper:
        burns, sleeps = Processes(burner, counted=True), Processes(sleeper, counted=True)
        before = burns.read()
        assert [*before.threads] == [burner]
        eventually(burns.read, lambda now: now.threads[burner][0] > before.threads[burner][0] and now.cpu > before.cpu)
        eventually(burns.may_wait)
        eventually(sleeps.may_wait, lambda may: not may)
        # It waits for what the other answers.
        assert [*Processes(sleeper, counted=True, partner=burner).read().threads] == [sleeper, burner]
        assert Processes(os.getpid(), counted=True).read().threads.keys() >= {os.getpid(), burner, sleeper}
        assert os.getpid() not in Processes(os.getpid(), counted=True, below=True).read().threads
        assert not Processes(burner, counted=False).read().threads


def test_children_that_have_ended_are_remembered() -> None:
    processes = Processes(os.getpid(), counted=True)
    before = processes.read().ended

    def ended() -> float:
        subprocess.run([sys.executable, "-S", "-c", "pass"], check=True)
        return processes.read().ended

    assert eventually(ended, lambda seconds: seconds > before) <= processes.read().cpu


ORPHANS = """
import os, time
from longboat_graders import prctl
from longboat_graders.times import Processes

prctl.adopt_orphans()
parent = os.fork()
if parent == 0:
    if os.fork() == 0:
        while time.process_time() < 0.05: pass
    os._exit(0)
os.waitpid(parent, 0)
os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)
print(Processes(os.getpid(), counted=True, below=True).cpu()[0] > 0.0)
"""


def test_what_a_program_starts_counts_also_without_its_parent() -> None:
    """A launcher adopts what its programs leave, and waits for none of it before the program has ended."""
    done = subprocess.run([sys.executable, "-c", ORPHANS], capture_output=True, text=True, check=True)
    assert done.stdout == "True\n"


# --- One grade, as the server sees it ------------------------------------------------------------------------------


def supervised(grading: Grading, pid: int) -> Supervised:
    """Makes a child that has been asked to grade and doesn't answer."""
    ours, _ = socket.socketpair()
    child = Supervised(1, True, ours, asyncio.get_running_loop(), Slowdown(), True, pid=pid)
    child.grade(grading)
    return child


def grading(timeout: float, own: float | None = None) -> Grading:
    return Grading(b"{}", timeout, 0, None, asyncio.get_running_loop().create_future(), own)


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> Callable[[Sequence[tuple[State, float]]], Recorded]:
    """Replaces the readings of any process by those of a thread with these spans."""

    def record(spans: Sequence[tuple[State, float]]) -> Recorded:
        processes = Recorded(Thread(spans))
        monkeypatch.setattr("longboat_graders.supervisor.Processes", lambda *_, **__: processes)
        return processes

    return record


@pytest.mark.parametrize("own", [None, 1.0], ids=["hard", "learned"])
async def test_a_busy_node_kills_nobody(
    recorded: Callable[[Sequence[tuple[State, float]]], Recorded], own: float | None
) -> None:
    """Nor does it at the hard limit."""
    hard = 1e3 if own else 1.0
    processes, child = recorded(CROWDED * 600), supervised(grading(hard, own), os.getpid())
    assert child.grading is not None
    # A grade that takes longer is measured from then on.
    now = child.grading.started + 0.1 * hard
    assert child.overdue(now) is None
    for look in range(1, 30):
        processes.now = 0.1 * look
        assert child.overdue(now) is None
    for look in range(30, 60):
        processes.now = 0.1 * look
        if (outcome := child.overdue(now)) is not None:
            break
    assert outcome is not None
    assert (outcome.kind, outcome.limited) == (OutcomeKind.TIMEOUT, own is not None)


async def test_a_grade_that_hardly_gets_a_cpu_is_graded_again_rather_than_scored(
    recorded: Callable[[Sequence[tuple[State, float]]], Recorded],
) -> None:
    recorded([(WAITS, 1e6)])
    child = supervised(grading(60.0), os.getpid())
    assert child.grading is not None
    began = child.grading.started
    for part in (0.5, 1.0, 0.99 * WALL_LIMIT_FACTOR):
        assert child.overdue(began + part * 60.0) is None
    outcome = child.overdue(began + WALL_LIMIT_FACTOR * 60.0)
    assert outcome is not None
    assert outcome.kind is OutcomeKind.GRADER_ERROR
    assert "hardly got a CPU" in outcome.message


async def test_a_quick_grade_is_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is read of its process: that would cost every grade."""
    measured: list[int] = []

    def processes(pid: int, **_: object) -> Recorded:
        measured.append(pid)
        return Recorded(Thread([(WAITS, 1e6)]))

    monkeypatch.setattr("longboat_graders.supervisor.Processes", processes)
    child = supervised(grading(30.0), os.getpid())
    assert child.grading is not None
    child.overdue(child.grading.started + 1.0)
    assert measured == []
    child.overdue(child.grading.started + 3.0)
    assert measured == [os.getpid()]


# --- Real graders --------------------------------------------------------------------------------------------------


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


async def grade(client: GraderClient, name: str, text: str, own: float | None, hard: float = LONG) -> FunctionOutcome:
    return await graded(client, name, RewardSample(text, ""), hard, own=own)


@pytest.mark.parametrize(
    ("name", "text"),
    [("run", BURNS), ("stay", "burn"), ("run", SLEEPS_ON), ("stay", "sleep"), ("run", STARTS)],
    ids=["computes", "stays and computes", "sleeps", "stays and sleeps", "waits for a program"],
)
async def test_what_goes_on_is_killed_at_its_limit(loaded: GraderClient, name: str, text: str) -> None:
    outcome = await grade(loaded, name, text, 0.3)
    assert (outcome.kind, outcome.limited) == (OutcomeKind.TIMEOUT, True)
    assert outcome.message == "killed after 0.3 s, the limit that was learned"
    assert outcome.own_seconds is not None


async def test_the_hard_limit_is_told_apart(loaded: GraderClient) -> None:
    for text, own in ((SLEEPS_ON, None), (SLEEPS_ON, 20.0), (BURNS, None)):
        outcome = await grade(loaded, "run", text, own, hard=0.3)
        assert (outcome.kind, outcome.limited) == (OutcomeKind.TIMEOUT, False)
        # A server that hardly gets a CPU looks late: the CPU limit may have ended what computes.
        late = {"killed at the CPU limit"} if text is BURNS else set()
        assert outcome.message in {"killed after 0.3 s"} | late
        assert (outcome.own_seconds is None) == (own is None)


async def test_a_kill_ends_nothing_but_its_grade(loaded: GraderClient) -> None:
    grading = [grade(loaded, "stay", text, own) for text, own in (("sleep", 0.3), ("", LONG)) * 2]
    outcomes = await asyncio.gather(*grading)
    assert [outcome.kind for outcome in outcomes] == [OutcomeKind.TIMEOUT, OutcomeKind.SCORED] * 2
    assert (await grade(loaded, "stay", "", LONG)).kind is OutcomeKind.SCORED


@pytest.mark.parametrize(
    ("name", "text"),
    [("run", "import os\nwhile not os.path.exists({!r}): pass"), ("stay", "leave {}")],
    ids=["run", "stay"],
)
async def test_who_has_answered_stays_until_it_is_seen_what_it_took(tmp_path: Path, name: str, text: str) -> None:
    """These processes grade no more after they have answered, which the server sees only later."""
    pids: list[int] = []
    gate = tmp_path / "gate"
    with running_graders(tmp_path, started=pids.append) as socket:
        client = GraderClient(socket)
        await load(client, tmp_path)
        grading = asyncio.create_task(grade(client, name, text.format(str(gate)), None))

        def computing() -> int | None:
            """Returns the process that grades: the only one that has used 0.1 s of CPU."""
            assert not grading.done()
            graders = (pid for zygote in children(pids[0]) for pid in children(zygote))
            return next((pid for pid in graders if cpu_clock(pid) > 0.1), None)

        pid = await eventually_async(computing)
        assert pid is not None
        os.kill(pids[0], signal.SIGSTOP)
        gate.touch()
        # Until it waits, or is gone.
        await eventually_async(lambda: process_state(pid), right=lambda state: state not in {"R", "D", "Z"})
        os.kill(pids[0], signal.SIGCONT)
        outcome = await grading
        await client.close()
    assert outcome.kind is OutcomeKind.SCORED
    assert outcome.cpu_seconds > 0.0
