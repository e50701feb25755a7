"""What a response can do to the grades after it: nothing, by any program, in Auto and PerGrade. Real processes, real limits, not as root.

Without the sandbox each program does its harm; what it can do under Shared is in docs/rewards.md.
"""

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from longboat_crds.rewards import RewardSpec
from longboat_graders.messages import FunctionOutcome, OutcomeKind
from longboat_graders.result import RewardSample
from longboat_runtime.reward.client import GraderClient
from tests.reward.conftest import LONG, as_graders_user, graded
from tests.reward.hostile_programs import LEFT, PROBE, PROGRAMS, SEED, TRUSTING
from tests.reward.naive import HONEST, sleepers
from tests.support.waiting import eventually, eventually_async

PAGE = Path(__file__).parents[2] / "docs/rewards.md"
# The limit, in seconds, of programs that hang.
SHORT = 0.3


def sample(text: str) -> RewardSample:
    return RewardSample(text, "prompt", "truth")


@pytest_asyncio.fixture
async def client(graders: Path) -> AsyncIterator[GraderClient]:
    client = GraderClient(graders)
    yield client
    await client.close()


@pytest.fixture(scope="module")
def trusting(graders_directory: Path) -> str:
    path = graders_directory / "trusting.py"
    path.write_text(TRUSTING)
    return f"{path}:run"


async def load(client: GraderClient, function: str, isolation: str, field: str, name: str = "trusting") -> None:
    reward = RewardSpec.model_validate({"name": name, "function": function, "isolation": isolation})
    # Another field makes it another reward, of which nothing is known.
    assert await client.load(reward, field) is None


async def harm(client: GraderClient, name: str, reward: str = "trusting") -> str | None:
    """Returns what the program did to the grade after it, or to the machine."""
    program = PROGRAMS[name]
    outcome = await graded(client, reward, sample(program.text), SHORT if program.hangs else LONG, SEED)
    for _ in range(2):
        probe = await client.grade(reward, sample(PROBE), LONG, SEED)
        if (probe.kind, probe.score) != (OutcomeKind.SCORED, 0.25):
            return f"the next grade: {probe}"
    if outcome.score == 1.0:
        return "it got out"
    # Killed processes may take a moment to disappear.
    eventually(lambda: [*sleepers()], lambda left: not left)
    return None


def left_by_grades(directory: Path) -> list[Path]:
    try:
        return list(directory.glob("longboat-graders-*/trusting-*/*/*"))
    except FileNotFoundError:
        return [directory]  # something in it is being removed


# Auto refuses all for the same reason.
UNDER_AUTO = ("an internet socket", "exiting", "a global variable")


@pytest.mark.parametrize(
    ("name", "isolation"),
    [
        *(pytest.param(name, "PerGrade") for name in PROGRAMS),
        *(pytest.param(name, "Auto", marks=[] if name in UNDER_AUTO else [pytest.mark.extended]) for name in PROGRAMS),
    ],
)
async def test_no_program_does_harm(client: GraderClient, trusting: str, name: str, isolation: str) -> None:
    reward = f"trusting-{isolation.lower()}"
    await load(client, trusting, isolation, f"spec.{name}" if isolation == "Auto" else "spec", reward)
    assert await harm(client, name, reward) is None
    # It would have run in a process that stays: that was refused before it could.
    assert client.isolation[reward].isolation == "PerGrade"
    assert ("compiles code" in client.isolation[reward].reason) == (isolation == "Auto")


async def test_what_shared_allows_is_documented(client: GraderClient, trusting: str) -> None:
    harmed = set()
    await load(client, trusting, "Shared", "spec")
    for name in PROGRAMS:
        if await harm(client, name) is not None:
            harmed.add(name)
        # The process that was harmed, if it still grades, makes room for another.
        await client.grade("trusting", sample("import os; os.kill(os.getpid(), 9)"), LONG, SEED)
    page = PAGE.read_text(encoding="utf-8").partition("### What Shared allows")[2].partition("\n##")[0]
    assert set(re.findall(r"^\* \*\*([^*]+)\*\*", page, re.MULTILINE)) == harmed
    assert harmed


@pytest.fixture(scope="module")
def without_sandbox(graders_directory: Path) -> dict[str, str | None]:
    """What harm each program does to a naive grader."""
    command = [*as_graders_user(), sys.executable, "-m", "tests.reward.naive", str(graders_directory)]
    done = subprocess.run(command, capture_output=True, cwd=Path(__file__).parents[2], check=True)
    return json.loads(done.stdout)


def test_a_program_that_does_no_harm_does_none_without_the_sandbox(without_sandbox: dict[str, str | None]) -> None:
    assert without_sandbox[HONEST] is None


@pytest.mark.parametrize("name", PROGRAMS)
def test_every_program_does_its_harm_without_the_sandbox(name: str, without_sandbox: dict[str, str | None]) -> None:
    assert without_sandbox[name] is not None


async def test_files_that_a_grade_keeps_on_their_way_stop_no_other_grade(
    client: GraderClient, trusting: str, graders_directory: Path
) -> None:
    await load(client, trusting, "PerGrade", "spec")
    program = """
import socket, time
pairs = []
try:
    while True:
        pairs.append(socket.socketpair())
        socket.send_fds(pairs[-1][0], [b'x'], [0] * 200)
except OSError:
    open('full', 'w').close()
time.sleep(1e6)
"""
    greedy = asyncio.create_task(client.grade("trusting", sample(program), LONG, SEED))
    await eventually_async(
        lambda: asyncio.to_thread(lambda: [*graders_directory.glob("longboat-graders-*/trusting-*/*/full")]), right=bool
    )
    # More than are there already.
    probes = [await client.grade("trusting", sample(PROBE), LONG, SEED) for _ in range(12)]
    assert {(probe.kind, probe.score) for probe in probes} == {(OutcomeKind.SCORED, 0.25)}
    greedy.cancel()


# --- What the outcomes say ------------------------------------------------------------------------------------------


@pytest_asyncio.fixture
async def grade(client: GraderClient, trusting: str):
    await load(client, trusting, "PerGrade", "spec")

    async def grade(program: str, seconds: float = LONG) -> FunctionOutcome:
        return await graded(client, "trusting", sample(program), seconds, SEED)

    return grade


async def test_a_timeout_says_so(grade) -> None:
    outcome = await grade("import time; time.sleep(1e6)", seconds=SHORT)
    assert (outcome.kind, outcome.score, outcome.message) == (OutcomeKind.TIMEOUT, 0.0, "killed after 0.3 s")


async def test_the_time_and_the_cpu_seconds_that_a_grade_took_are_told(grade) -> None:
    outcome = await grade("score = 1")
    assert outcome.seconds > 0.0
    assert outcome.cpu_seconds > 0.0


@pytest.mark.parametrize("own", [None, LONG / 2])
async def test_cpu_seconds_are_told_of_one_that_never_answered(
    client: GraderClient, trusting: str, own: float | None
) -> None:
    await load(client, trusting, "PerGrade", "spec")
    outcome = await graded(client, "trusting", sample("import os; os._exit(3)"), LONG, SEED, own)
    assert outcome.kind is OutcomeKind.GRADER_ERROR
    assert outcome.cpu_seconds > 0.0
    assert (outcome.own_seconds is None) == (own is None)


async def test_threads_use_up_the_cpu_limit_before_the_time_is_up(grade) -> None:
    """Several programs each have it; a busy one is ended by it."""
    program = "import resource; score = float(resource.getrlimit(resource.RLIMIT_CPU)[0])"
    assert (await grade(program)).score == LONG + 1


async def test_a_grade_that_exits_is_a_grader_error_not_a_zero(grade) -> None:
    outcome = await grade("import os; print('so long'); os.sys.stdout.flush(); os._exit(3)")
    assert outcome.kind is OutcomeKind.GRADER_ERROR
    assert outcome.message == "the grade's process exited with code 3 before it answered; its last output: so long"
    assert "SystemExit" in (await grade("raise SystemExit")).message
    assert "ended by SIGSEGV" in (await grade("import ctypes; ctypes.string_at(0)")).message
    assert "ended by signal 40" in (await grade("import os; os.kill(os.getpid(), 40)")).message


async def test_what_has_answered_and_goes_on_is_killed(grade) -> None:
    """It finds its token, answers by itself, and starts a program and sleeps instead of ending."""
    program = """
import json, os, subprocess, sys, time
frame = sys._getframe()
while 'request' not in frame.f_locals: frame = frame.f_back
outcome = {'kind': 'scored', 'score': 1.0, 'seconds': 0, 'message': '', 'cpu_seconds': 0}
header = json.dumps({'token': frame.f_locals['request']['token'], 'outcome': outcome}).encode()
subprocess.Popen(['sleep', LEFT])
os.write(3, len(header).to_bytes(4, 'big') + bytes(4) + header)
time.sleep(1e6)
"""
    assert (await grade(program.replace("LEFT", repr(LEFT)))).score == 1.0
    eventually(lambda: [*sleepers()], lambda left: not left)


async def test_system_calls_beyond_python_are_refused(grade) -> None:
    """io_uring_setup, ptrace(TRACEME), unshare(CLONE_NEWUSER), clone(CLONE_NEWUSER), shmget: EPERM; clone3: ENOSYS."""
    program = """
import ctypes, platform
libc = ctypes.CDLL(None, use_errno=True)
from longboat_graders.seccomp import number
calls = [('io_uring_setup', 8, 0), ('ptrace', 0, 0), ('unshare', 0x10000000, 0), ('clone', 0x10000000, 0), ('shmget', 0, 4096, 0o1600)]
errors = []
for name, *arguments in [*calls, ('clone3', 0, 0)]:
    ctypes.set_errno(0)
    libc.syscall(number(name, platform.machine()), *arguments)
    errors.append(ctypes.get_errno())
score = errors == [1, 1, 1, 1, 1, 38]
"""
    assert (await grade(program)).score == 1.0


async def test_endless_output_harms_nothing(grade) -> None:
    outcome = await grade("while True: print('x' * 2**20)")
    assert outcome.kind is OutcomeKind.GRADER_ERROR
    assert "File too large" in outcome.message
    noise = "import os\nfor fd in (1, 2): os.write(fd, b'\\x00\\x00\\x00\\x02{}' * 1000)\nscore = 1"
    assert (await grade(noise)).score == 1.0


async def test_garbage_for_an_answer_is_a_grader_error(grade) -> None:
    garbage = [
        "b'\\xff' * 8",
        "b'\\x00\\x00\\x00\\x02' + bytes(4) + b'{}'",
        "b'\\x00\\x00\\x00\\x02' + bytes(4) + b'[]'",
        # What only a watched process may say.
        "b'\\x00\\x00\\x00\\x0f' + bytes(4) + b'{\"refused\":\"x\"}'",
    ]
    for answer in garbage:
        outcome = await grade(f"import os; os.write(3, {answer}); import time; time.sleep(1e6)")
        assert outcome.kind is OutcomeKind.GRADER_ERROR
        assert "can't be read" in outcome.message


async def test_what_a_grade_writes_is_removed(grade, graders_directory: Path) -> None:
    program = """
import os
open('a', 'w').write('x'); os.symlink('/etc', 'link')
for _ in range(1100):
    os.mkdir('d' * 50); os.chdir('d' * 50)
os.mkdir('locked'); os.chmod('locked', 0)
score = 1.0
"""
    assert (await grade(program)).score == 1.0
    assert (await grade("score = 1.0")).score == 1.0
    await eventually_async(lambda: left_by_grades(graders_directory), right=lambda left: not left)


async def test_ordinary_python_works_inside(grade) -> None:
    program = """
import asyncio, signal, subprocess, sys, tempfile, threading
async def nothing(): return 1
assert asyncio.run(nothing()) == 1
done = []
thread = threading.Thread(target=lambda: done.append(1)); thread.start(); thread.join()
assert subprocess.run([sys.executable, '-c', 'print(6 * 7)'], capture_output=True, text=True).stdout == '42\\n'
try: subprocess.run(['sleep', '100'], timeout=0.1)
except subprocess.TimeoutExpired: done.append(2)
with tempfile.NamedTemporaryFile() as file: file.write(b'x')
signal.alarm(100)
score = sum(done)
"""
    outcome = await grade(program)
    assert (outcome.kind, outcome.score) == (OutcomeKind.SCORED, 3.0), outcome.message


async def test_more_grades_than_processes_wait_their_turn(grade) -> None:
    outcomes = await asyncio.gather(*(grade("score = 1") for _ in range(12)))
    assert sum(outcome.score for outcome in outcomes) == 12


async def test_a_dead_zygote_is_replaced(grade) -> None:
    outcome = await grade("import os; score = os.getppid()")
    os.kill(int(outcome.score), signal.SIGKILL)
    again = await eventually_async(
        lambda: grade("import os; score = os.getppid()"),
        right=lambda again: again.kind is OutcomeKind.SCORED and again.score != outcome.score,
    )
    assert again.score > 0
    assert json.dumps(again.to_json())
