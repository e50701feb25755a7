"""Learned limits of test cases: they are of each case's own seconds, and what a case has taken is measured outside of the program. Real programs."""

import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from longboat_crds.rewards import RewardSpec, SandboxSpec
from longboat_runtime.reward.client import GraderClient
from longboat_runtime.reward.function import SandboxSettings
from longboat_runtime.reward.graders.process_tree import children
from longboat_runtime.reward.graders.program import COMMAND
from longboat_runtime.reward.graders.runner import FILES, CaseLimit, Run, Runner
from longboat_runtime.reward.graders.seccomp import can_ask, let_start
from longboat_runtime.reward.result import FunctionOutcome, OutcomeKind, RewardSample
from tests.reward.conftest import graded
from tests.reward.test_own_time import BURN, crowded

# The hard limit of a case in seconds, which none of these programs reaches.
HARD = 120.0
# Prints what it has read, after what stands before it.
ECHO = "number = input()\n{}\nprint(number)"
# Burns, or sleeps, in the cases that are "long".
LONG_BURN = ECHO.format("if number == 'long':\n    " + BURN.format(60).replace("\n", "\n    "))
LONG_SLEEP = ECHO.format("import time\nif number == 'long': time.sleep(60)")
# Four compute at once, each when its parent has ended; the program waits until all have closed a pipe.
ORPHANS = """
import os, time
ends, others = os.pipe()
for _ in range(4):
    if os.fork() == 0:
        if os.fork() == 0:
            end = time.process_time() + 0.3
            while time.process_time() < end: pass
        os._exit(0)
    os.wait()
os.close(others); os.read(ends, 1)
print(input())
"""
CALLED = "import time\ndef echo(text):\n    if text == 'long':\n        end = time.process_time() + {}\n        while time.process_time() < end: pass\n    return text"


# Not `python3`, which may be a script that starts forty processes first.
PYTHON = ["env", sys.executable]
# Takes so many CPU seconds.
SLOW_COMPILER = [*PYTHON, "-S", "-c", BURN.format(0.15)]


def printed(*inputs: str) -> dict[str, Any]:
    return {"input_output": json.dumps({"inputs": inputs, "outputs": inputs})}


def called(*inputs: str) -> dict[str, Any]:
    cases = {"inputs": [[text] for text in inputs], "outputs": [[text] for text in inputs], "fn_name": "echo"}
    return {"input_output": json.dumps(cases)}


@pytest_asyncio.fixture
async def client(graders: Path) -> AsyncIterator[GraderClient]:
    client = GraderClient(graders)
    command = [*PYTHON, "-S", "{file}"]
    for name, sandbox in (
        ("all", {}),
        ("part", {"credit": "Fraction"}),
        ("command", {"runCommand": command}),
        ("compiled", {"runCommand": command, "compileCommand": SLOW_COMPILER, "compileTimeoutSeconds": 0.5}),
    ):
        reward = RewardSpec.model_validate({"name": name, "kind": "Sandbox", "sandbox": sandbox, "learnedTimeout": {}})
        assert await client.load(reward, "spec.rewards[0]") is None
    yield client
    await client.close()


async def grade(
    client: GraderClient, name: str, program: str, row: dict[str, Any], own: float | None, hard: float = HARD
) -> FunctionOutcome:
    return await graded(client, name, RewardSample(program, "", columns=row), hard, own=own)


@pytest.mark.parametrize(
    ("name", "program", "row"),
    [
        ("all", LONG_BURN, printed("short", "long")),
        ("all", LONG_SLEEP, printed("short", "long")),
        ("all", CALLED.format(60), called("short", "long")),
        ("command", LONG_SLEEP, printed("short", "long")),
    ],
    ids=["computes", "sleeps", "is called", "is a command"],
)
async def test_a_case_that_takes_longer_fails_as_by_a_timeout(
    client: GraderClient, name: str, program: str, row: dict[str, Any]
) -> None:
    outcome = await grade(client, name, program, row, 1.0)
    assert (outcome.kind, outcome.score, outcome.limited) == (OutcomeKind.TIMEOUT, 0.0, True), outcome
    assert outcome.message == "case 2 of 2: timed out; killed after 1 s, the limit that was learned"
    assert outcome.own_seconds is not None
    assert outcome.own_seconds > 1.0


async def test_with_partial_credit_the_other_cases_count(client: GraderClient) -> None:
    outcome = await grade(client, "part", LONG_SLEEP, printed("long", "short"), 1.0)
    assert (outcome.kind, outcome.score, outcome.limited) == (OutcomeKind.SCORED, 0.5, True), outcome
    assert "the limit that was learned" in outcome.message


async def test_the_limit_is_of_each_case_and_the_longest_decides(client: GraderClient) -> None:
    program = ECHO.format(BURN.format("float(number)"))
    outcome = await grade(client, "all", program, printed("0.8", "1.0", "0.8"), 2.5)
    assert (outcome.kind, outcome.score, outcome.limited) == (OutcomeKind.SCORED, 1.0, False), outcome
    assert outcome.own_seconds is not None
    assert 1.0 <= outcome.own_seconds <= 2.5
    assert outcome.cpu_seconds >= 2.6


async def test_without_a_limit_in_force_the_times_are_still_told(client: GraderClient) -> None:
    """So are audits, and the first responses: the hard limit is given for the learned one."""
    program = ECHO.format("import time; time.sleep(float(number))")
    outcome = await grade(client, "all", program, printed("0.5"), HARD)
    assert (outcome.kind, outcome.score, outcome.limited) == (OutcomeKind.SCORED, 1.0, False), outcome
    assert outcome.own_seconds is not None
    assert outcome.own_seconds >= 0.5
    hard = await grade(client, "all", program, printed("60"), 0.5, hard=0.5)
    assert (hard.kind, hard.limited) == (OutcomeKind.TIMEOUT, False)
    assert hard.message == "case 1 of 1: timed out"
    assert (await grade(client, "all", program, printed("0.1"), None)).own_seconds is None


# Printed, and called.
QUICK = [(ECHO.format(BURN.format(0.15)), printed("long")), (CALLED.format(0.15), called("long"))]


async def test_a_busy_node_kills_nobody(client: GraderClient) -> None:
    limits = []
    for program, row in QUICK:
        # Other tests may crowd the node at any time.
        idle = [(await grade(client, "all", program, row, HARD)).own_seconds for _ in range(3)]
        limits.append(2 * min(seconds for seconds in idle if seconds is not None))
    with crowded():
        outcomes = [await grade(client, "all", *each, limit) for each, limit in zip(QUICK, limits, strict=True)]
    for outcome, limit in zip(outcomes, limits, strict=True):
        assert (outcome.kind, outcome.score) == (OutcomeKind.SCORED, 1.0), outcome
        assert outcome.own_seconds is not None
        assert outcome.own_seconds <= limit < outcome.seconds


async def test_nor_does_it_at_the_hard_limit(client: GraderClient) -> None:
    compiled = ("compiled", ECHO.format(""), printed("long"))
    with crowded():
        outcomes = [
            await grade(client, *each, None, hard=0.5) for each in (*(("all", *each) for each in QUICK), compiled)
        ]
    for outcome in outcomes:
        assert (outcome.kind, outcome.score) == (OutcomeKind.SCORED, 1.0), outcome
        assert outcome.seconds > 0.5


async def test_sleep_counts_for_the_hard_limit(client: GraderClient) -> None:
    """What short programs have waited isn't known, but can be estimated."""
    starts = ECHO.format("import os, time\nwhile True:\n    os.fork() or os._exit(time.sleep(0.02))\n    os.wait()")
    for program in (LONG_SLEEP, starts):
        outcome = await grade(client, "all", program, printed("long"), None, hard=1.0)
        assert (outcome.kind, outcome.limited) == (OutcomeKind.TIMEOUT, False), outcome


@contextmanager
def running(directory: Path) -> Iterator[tuple[Runner, int]]:
    """A runner, and the id of its process. Until they run, its programs are forks of this process, which may hold much."""
    before = set(children())
    runner = Runner(str(directory), SandboxSettings.of(SandboxSpec.model_validate({"memory": "1Ti"})), ["/"], [])
    (pid,) = set(children()) - before
    try:
        yield runner, pid
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


@contextmanager
def started(runner: Runner, program: str, seconds: float) -> Iterator[None]:
    """The program runs with this limit."""
    with ExitStack() as stack:
        files = {name: stack.enter_context(tempfile.TemporaryFile()) for name in FILES[:-1]}
        numbers = {name: file.fileno() for name, file in files.items()}
        runner.start(Run(COMMAND, seconds, command=(*PYTHON, "-S", "-c", program), own=CaseLimit(seconds)), numbers)
        yield


# It computes only when nobody else does.
IDLE = "import os\nos.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))\n"


def test_a_case_that_hardly_gets_a_cpu_is_no_timeout(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("longboat_runtime.reward.graders.runner.STARVED", 1.1)
    with crowded(), running(tmp_path) as (runner, _), started(runner, IDLE + "while True: pass", 2.0):
        ended = runner.ended()
    assert (ended.limit, ended.starved) == (None, True), ended


def test_a_program_is_not_blamed_for_how_long_its_runner_waits_before_it_lets_it_start_another(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The runner, which is asked first, is said to wait for a CPU each time."""
    assert can_ask()
    waited, each, starts = 0.0, 0.5, 4

    def let_start_late(listener: int) -> None:
        nonlocal waited
        time.sleep(each)
        waited += each
        let_start(listener)

    monkeypatch.setattr("longboat_runtime.reward.graders.runner.let_start", let_start_late)
    monkeypatch.setattr("longboat_runtime.reward.graders.runner.waited_here", lambda: waited)
    program = f"import os\nfor _ in range({starts}):\n    os.fork() or os._exit(0)\n    os.wait()"
    with running(tmp_path) as (runner, _), started(runner, program, 600.0):
        ended = runner.ended()
    assert ended.status == 0
    assert ended.own_seconds is not None
    assert ended.own_seconds <= ended.seconds - starts * each


async def test_a_sleeper_goes_on_a_busy_node_as_well(client: GraderClient) -> None:
    with crowded():
        outcome = await grade(client, "all", LONG_SLEEP, printed("long"), 1.0)
    assert (outcome.kind, outcome.limited) == (OutcomeKind.TIMEOUT, True)


async def test_what_a_program_starts_counts_also_without_its_parent(client: GraderClient) -> None:
    outcome = await grade(client, "all", ORPHANS, printed("x"), HARD)
    assert (outcome.kind, outcome.score, outcome.limited) == (OutcomeKind.SCORED, 1.0, False), outcome
    assert outcome.own_seconds is not None
    assert outcome.own_seconds >= 4 * 0.3


async def test_a_program_cannot_seem_shorter_than_it_was(client: GraderClient) -> None:
    """It says nothing of its time, sets its clocks as it likes, and has what it starts end unseen.

    On a busy node some of what it sleeps is excused, as long as others of its processes wait for a CPU.
    """
    program = (
        "import os, signal, time\nsignal.signal(signal.SIGCHLD, signal.SIG_IGN)\ntime.process_time = time.monotonic = lambda: 0.0\n"
        "for _ in range(5):\n    if os.fork() == 0:\n        time.sleep(0.1); os._exit(0)\n    time.sleep(0.15)\nprint(input())"
    )
    measured: list[float] = []
    while not measured or (max(measured) < 0.7 and len(measured) < 50):
        outcome = await grade(client, "all", program, printed("x"), HARD)
        assert (outcome.kind, outcome.score) == (OutcomeKind.SCORED, 1.0), outcome
        assert outcome.own_seconds is not None
        measured.append(outcome.own_seconds)
    assert max(measured) >= 0.7
