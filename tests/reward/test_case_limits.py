"""Learned limits of test cases: they limit each case's own seconds, which are measured outside of the program.

How own seconds are counted is tested in `test_own_time.py`. Here it is tested what a case runner and its launcher do with them, and that real
programs that go on are killed.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from longboat_crds.rewards import RewardSpec, SandboxSpec
from longboat_graders.case_runner import CaseRunner
from longboat_graders.messages import FunctionOutcome, OutcomeKind, RewardFunction, SandboxSettings
from longboat_graders.process_tree import children
from longboat_graders.program import COMMAND, FILES, CaseLimit, Ended, Launcher, Run
from longboat_graders.result import RewardSample
from longboat_graders.seccomp import can_ask, let_start
from longboat_graders.times import Processes, Reading
from longboat_graders.verdict import CaseResult
from longboat_runtime.reward.client import GraderClient
from tests.reward.conftest import LONG, graded

# Programs that go on for ever: they compute, sleep, sleep with clocks that they have set, and start others that sleep.
BURNS, SLEEPS = "while True: pass", "import time; time.sleep(1e6)"
SETS_CLOCKS = "import time\ntime.process_time = time.monotonic = lambda: 0.0\ntime.sleep(1e6)"
STARTS = "import os, time\nwhile True:\n    os.fork() or os._exit(time.sleep(0.2))\n    os.wait()"
CALLED = f"def echo(text):\n    if text == 'long':\n        {BURNS}\n    return text"
ECHO = "print(input())"


# Not `python3`, which may be a script that starts forty processes first.
PYTHON = ["env", sys.executable]


def printed(*inputs: str) -> dict[str, Any]:
    return {"input_output": json.dumps({"inputs": inputs, "outputs": inputs})}


def called(*inputs: str) -> dict[str, Any]:
    cases = {"inputs": [[text] for text in inputs], "outputs": [[text] for text in inputs], "fn_name": "echo"}
    return {"input_output": json.dumps(cases)}


def spec(name: str, **sandbox: Any) -> RewardSpec:
    return RewardSpec.model_validate({"name": name, "kind": "Sandbox", "sandbox": sandbox, "learnedTimeout": {}})


# --- What a case runner makes of how its programs ended --------------------------------------------------------------


class Ends:
    """Stands in for a launcher whose programs end as given, one after another, and print what their case expects."""

    def __init__(self, directory: Path, ends: Sequence[Ended]) -> None:
        (directory / "run").mkdir()
        self.directory, self._ends = str(directory), iter(ends)

    def moved(self, number: int) -> None: ...

    def start(self, run: Run, files: Mapping[str, int]) -> None:
        os.write(files["stdout"], os.pread(files["stdin"], 100, 0))

    def ended(self) -> Ended:
        return next(self._ends)


WELL = Ended(limit=None, status=0, seconds=9.0, cpu_seconds=0.5, own_seconds=0.75)
LONGER = Ended(limit=None, status=0, seconds=9.0, cpu_seconds=0.5, own_seconds=0.875)
KILLED = Ended(limit=CaseResult.TIMEOUT, status=-9, seconds=9.0, cpu_seconds=0.5, own_seconds=1.25, limited=True)
STARVED = Ended(limit=None, status=-9, seconds=9.0, cpu_seconds=0.5, own_seconds=0.25, starved=True)


def outcome_of(directory: Path, *ends: Ended, **sandbox: Any) -> Mapping[str, Any]:
    """Returns what a case runner says of a program whose cases end like this under a limit of 1 s."""
    case_runner = CaseRunner(RewardFunction.from_spec(spec("code", **sandbox)), "spec.rewards[0]", ["/nowhere"])
    case_runner._launcher = Ends(directory, ends)  # type: ignore[assignment]
    row = printed(*(str(number) for number in range(len(ends))))
    return case_runner.outcome(RewardSample(ECHO, "", columns=row), LONG, 0, {"seconds": 1.0})


def test_a_case_that_was_killed_fails_as_by_a_timeout(tmp_path: Path) -> None:
    said = outcome_of(tmp_path, WELL, KILLED, WELL)
    assert said == {
        "kind": "timeout",
        "score": 0.0,
        "message": "case 2 of 3: timed out; killed after 1 s, the limit that was learned",
        "cpu_seconds": 1.0,
        "own_seconds": 1.25,
        "limited": True,
    }


def test_with_partial_credit_the_other_cases_count(tmp_path: Path) -> None:
    said = outcome_of(tmp_path, KILLED, WELL, credit="Fraction")
    assert (said["kind"], said["score"], said["limited"]) == ("scored", 0.5, True)
    assert "the limit that was learned" in said["message"]


def test_the_limit_is_of_each_case_and_the_longest_decides(tmp_path: Path) -> None:
    said = outcome_of(tmp_path, WELL, LONGER, WELL)
    assert (said["kind"], said["score"], said["limited"]) == ("scored", 1.0, False)
    assert (said["own_seconds"], said["cpu_seconds"]) == (0.875, 1.5)


def test_of_a_case_that_hardly_got_a_cpu_nothing_is_said(tmp_path: Path) -> None:
    with pytest.raises(TimeoutError, match="hardly got a CPU"):
        outcome_of(tmp_path, WELL, STARVED)


# --- What a launcher kills -------------------------------------------------------------------------------------------


class Account(Processes):
    """Scripts readings: each comes `seconds` after the one before, and a thread has `waited` so many more seconds.

    The third reading after the first makes `gate`.
    """

    def __init__(self, seconds: float, waited: float, gate: Path | None = None) -> None:
        self._seconds, self._waited, self._gate = seconds, waited, gate
        self.counted, self._readings = True, 0

    def read(self, *, first: bool = False) -> Reading:
        number = self._readings
        self._readings += 1
        if number == 3 and self._gate is not None:
            self._gate.touch()
        ran, waited = round(1e3 * number), round(1e9 * self._waited * number)
        return Reading(self._seconds * number, {1: (ran, waited)}, 1e-6 * number, 0.0)

    def cpu(self) -> tuple[float, float]:
        return 0.0, 0.0

    def may_wait(self) -> bool:
        return True


@contextmanager
def running(directory: Path) -> Iterator[Launcher]:
    """Lends a launcher with much memory: until its programs run, they are forks of this process, which may hold much."""
    before = set(children())
    launcher = Launcher(
        str(directory), SandboxSettings.from_spec(SandboxSpec.model_validate({"memory": "1Ti"})), ["/"], []
    )
    (pid,) = set(children()) - before
    try:
        yield launcher
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def ended(launcher: Launcher, program: str, seconds: float = LONG, learned: float | None = LONG) -> Ended:
    """Runs the program with a limit of `seconds`, or of `learned` if that is lower, and returns how it ended."""
    with ExitStack() as stack:
        files = {name: stack.enter_context(tempfile.TemporaryFile()) for name in FILES[:-1]}
        numbers = {name: file.fileno() for name, file in files.items()}
        launcher.start(Run(COMMAND, seconds, command=(*PYTHON, "-S", "-c", program), own=CaseLimit(learned)), numbers)
        return launcher.ended()


@pytest.fixture
def account(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Replaces the readings of any process by those of an `Account`."""

    def account(*arguments: Any) -> None:
        processes = Account(*arguments)
        monkeypatch.setattr("longboat_graders.program.Processes", lambda *_, **__: processes)

    return account


LIMITS = pytest.mark.parametrize(("hard", "learned"), [(LONG, None), (10 * LONG, LONG)], ids=["hard", "learned"])


@LIMITS
def test_a_busy_node_kills_nobody(account: Any, tmp_path: Path, hard: float, learned: float | None) -> None:
    """At each look another 1000 s have passed, and it has waited for a CPU nearly as long."""
    gate = tmp_path / "gate"
    account(1000.0, 999.0, gate)
    with running(tmp_path) as launcher:
        end = ended(launcher, f"import os\nwhile not os.path.exists({str(gate)!r}): pass", hard, learned)
    assert (end.limit, end.status, end.limited, end.starved) == (None, 0, False, False), end


@LIMITS
def test_time_that_is_not_waited_is_its_own(account: Any, tmp_path: Path, hard: float, learned: float | None) -> None:
    account(1000.0, 0.0)
    with running(tmp_path) as launcher:
        end = ended(launcher, SLEEPS, hard, learned)
    assert (end.limit, end.limited) == (CaseResult.TIMEOUT, learned is not None), end


def test_a_case_that_hardly_gets_a_cpu_is_no_timeout(
    account: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    account(1000.0, 1000.0)
    monkeypatch.setattr("longboat_graders.program.WALL_LIMIT_FACTOR", 0.0)
    with running(tmp_path) as launcher:
        end = ended(launcher, SLEEPS)
    assert (end.limit, end.starved) == (None, True), end


def test_a_program_is_not_blamed_for_how_long_its_runner_waits_before_it_lets_it_start_another(
    account: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Before each start the launcher is asked, and seems to wait for a CPU all that time."""
    assert can_ask()
    waited, starts = 0.0, 4
    account(1000.0, 0.0)

    def let_start_late(listener: int) -> None:
        nonlocal waited
        waited += 1e6
        let_start(listener)

    monkeypatch.setattr("longboat_graders.program.let_start", let_start_late)
    monkeypatch.setattr("longboat_graders.program.waited_here", lambda: waited)
    # Nothing is excused before the first look.
    program = f"import os\nfor _ in range({starts}):\n    os.fork() or os._exit(0)\n    os.wait()"
    with running(tmp_path) as launcher:
        end = ended(launcher, program, 1e9, 1e9)
    assert end.status == 0
    assert end.own_seconds is not None
    assert end.own_seconds < 1e3


# --- Real graders ---------------------------------------------------------------------------------------------------


@pytest_asyncio.fixture
async def client(graders: Path) -> AsyncIterator[GraderClient]:
    client = GraderClient(graders)
    for reward in (spec("all"), spec("command", runCommand=[*PYTHON, "-S", "{file}"])):
        assert await client.load(reward, "spec.rewards[0]") is None
    yield client
    await client.close()


async def grade(
    client: GraderClient, name: str, program: str, row: dict[str, Any], own: float | None, hard: float = LONG
) -> FunctionOutcome:
    return await graded(client, name, RewardSample(program, "", columns=row), hard, own=own)


@pytest.mark.parametrize(
    ("name", "program", "row"),
    [
        ("all", BURNS, printed("long")),
        ("all", SLEEPS, printed("long")),
        ("all", CALLED, called("long")),
        ("command", SLEEPS, printed("long")),
        ("all", SETS_CLOCKS, printed("long")),
    ],
    ids=["computes", "sleeps", "is called", "is a command", "sets its clocks"],
)
async def test_a_case_that_goes_on_is_killed_at_the_learned_limit(
    client: GraderClient, name: str, program: str, row: dict[str, Any]
) -> None:
    outcome = await grade(client, name, program, row, 1.0)
    assert (outcome.kind, outcome.score, outcome.limited) == (OutcomeKind.TIMEOUT, 0.0, True), outcome
    assert outcome.message == "case 1 of 1: timed out; killed after 1 s, the limit that was learned"
    assert outcome.own_seconds is not None


@pytest.mark.parametrize("program", [BURNS, SLEEPS, STARTS], ids=["computes", "sleeps", "starts others"])
async def test_a_case_that_goes_on_is_killed_at_the_hard_limit(client: GraderClient, program: str) -> None:
    """So are audits and first responses, for which the hard limit stands in for the learned one."""
    for own in (None, 0.5):
        outcome = await grade(client, "all", program, printed("long"), own, hard=0.5)
        assert (outcome.kind, outcome.score, outcome.limited) == (OutcomeKind.TIMEOUT, 0.0, False), outcome
        assert outcome.message == "case 1 of 1: timed out"
        assert (outcome.own_seconds is None) == (own is None)


async def test_without_a_limit_in_force_the_times_are_still_told(client: GraderClient) -> None:
    for program, row in ((ECHO, printed("short")), (CALLED, called("short"))):
        for own in (None, LONG):
            outcome = await grade(client, "all", program, row, own)
            assert (outcome.kind, outcome.score, outcome.limited) == (OutcomeKind.SCORED, 1.0, False), outcome
            assert (outcome.own_seconds is None) == (own is None)
