"""What a response can do to the graders: nothing that outlives its grade. Real processes, real limits, not as root."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
import pytest_asyncio

from longboat_crds.rewards import RewardSpec
from longboat_runtime.reward.client import GraderClient
from longboat_runtime.reward.result import FunctionOutcome, OutcomeKind, RewardSample

# The most trusting reward function there can be: it runs the response in its own process.
TRUSTING = """
import os
state = []

def run(sample):
    scope = {"sample": sample, "state": state, "refused": refused}
    exec(sample.text, scope)
    return scope.get("score", 0.0)

def refused(call, *arguments):
    try:
        call(*arguments)
    except PermissionError:
        return True
    return False
"""

Grade = Callable[..., Awaitable[FunctionOutcome]]


@pytest_asyncio.fixture
async def grade(graders: Path, graders_directory: Path) -> AsyncIterator[Grade]:
    path = graders_directory / "trusting.py"
    path.write_text(TRUSTING)
    client = GraderClient(graders)
    assert await client.load(RewardSpec(name="trusting", function=f"{path}:run"), "spec.rewards[0]") is None

    async def grade(program: str, seconds: float = 20.0) -> FunctionOutcome:
        return await client.grade("trusting", RewardSample(text=program, prompt=""), seconds, seed=0)

    yield grade
    await client.close()


def left_by_grades(directory: Path) -> list[Path]:
    return list(directory.glob("longboat-graders-*/trusting-*/*"))


async def assert_still_grading(grade: Grade) -> None:
    outcomes = await asyncio.gather(*(grade("score = 1.0") for _ in range(4)))
    assert [outcome.kind for outcome in outcomes] == [OutcomeKind.SCORED] * 4


async def test_sleeping_for_ever_is_killed_and_counted_as_timeout(grade: Grade) -> None:
    outcome = await grade("import time; time.sleep(1e6)", seconds=0.5)
    assert (outcome.kind, outcome.score) == (OutcomeKind.TIMEOUT, 0.0)
    assert outcome.seconds >= 0.5
    await assert_still_grading(grade)


async def test_a_deaf_busy_loop_is_killed(grade: Grade) -> None:
    program = "import signal\nfor n in (1, 2, 10, 14, 15, 24): signal.signal(n, signal.SIG_IGN)\nwhile True:\n  try:\n    while True: pass\n  except BaseException: pass"
    assert (await grade(program, seconds=0.5)).kind is OutcomeKind.TIMEOUT


async def test_fork_bomb_is_bounded_and_leaves_nothing(grade: Grade) -> None:
    program = "import os\nwhile True:\n  try: os.fork()\n  except BlockingIOError: pass"
    outcome = await grade(program, seconds=1.0)
    assert outcome.kind is OutcomeKind.TIMEOUT
    await assert_still_grading(grade)


async def test_background_processes_end_with_their_grade(grade: Grade, graders_directory: Path) -> None:
    program = "import os, time\nif os.fork() == 0:\n  if os.fork() == 0:\n    time.sleep(1e6)\n  os._exit(0)\nscore = float(os.getpid())"
    outcome = await grade(program)
    assert outcome.kind is OutcomeKind.SCORED
    await assert_still_grading(grade)
    with pytest.raises(ProcessLookupError):
        os.killpg(int(outcome.score), 0)


@pytest.mark.parametrize(
    "call",
    [
        "import socket; score = refused(socket.socket)",
        "import socket; score = refused(socket.socket, socket.AF_UNIX)",
        "import socket; score = refused(socket.socket, socket.AF_NETLINK)",
        "import socket; score = refused(socket.socketpair, socket.AF_UNIX, socket.SOCK_DGRAM)",
        "import os; score = refused(os.setsid)",
        "import os; score = refused(os.setpgid, 0, 0)",
        "import os; score = refused(os.kill, os.getppid(), 9)",
        "import os; score = refused(os.kill, -1, 9)",
        "import os; score = refused(os.kill, -os.getppid(), 15)",
        "import os; score = refused(os.setpriority, os.PRIO_PROCESS, 0, 5)",
        "import os; score = refused(os.open, f'/proc/{os.getppid()}/mem', os.O_RDWR)",
        "import os; score = refused(os.open, f'/proc/{os.getppid()}/environ', os.O_RDONLY)",
        "import resource, os; score = refused(resource.prlimit, os.getppid(), resource.RLIMIT_NOFILE, (1, 1))",
        "import os; score = refused(os.mkdir, '/tmp/mine')",
        "score = refused(open, '/dev/shm/mine', 'w')",
        "score = refused(open, '../mine', 'w')",
    ],
)
async def test_ways_out_are_refused(grade: Grade, call: str) -> None:
    outcome = await grade(call)
    assert (outcome.kind, outcome.score) == (OutcomeKind.SCORED, 1.0), outcome.message


async def test_system_calls_beyond_python_are_refused(grade: Grade) -> None:
    """io_uring_setup, ptrace(TRACEME), unshare(CLONE_NEWUSER), clone(CLONE_NEWUSER), shmget: EPERM; clone3: ENOSYS."""
    program = """
import ctypes, platform
libc = ctypes.CDLL(None, use_errno=True)
from longboat_runtime.reward.graders.seccomp import number
calls = [('io_uring_setup', 8, 0), ('ptrace', 0, 0), ('unshare', 0x10000000, 0), ('clone', 0x10000000, 0), ('shmget', 0, 4096, 0o1600)]
errors = []
for name, *arguments in [*calls, ('clone3', 0, 0)]:
    ctypes.set_errno(0)
    libc.syscall(number(name, platform.machine()), *arguments)
    errors.append(ctypes.get_errno())
score = errors == [1, 1, 1, 1, 1, 38]
"""
    assert (await grade(program)).score == 1.0


async def test_no_grade_sees_what_another_did(grade: Grade) -> None:
    program = "import builtins, os; builtins.float = lambda value: 99.0; state.append(1); os.environ['X'] = '1'; score = len(state)"
    assert (await grade(program)).score == 99.0
    assert (await grade("import os; score = float('5') + len(state) + ('X' in os.environ)")).score == 5.0


async def test_a_grade_that_exits_is_a_grader_error_not_a_zero(grade: Grade) -> None:
    outcome = await grade("import os; print('so long'); os.sys.stdout.flush(); os._exit(3)")
    assert outcome.kind is OutcomeKind.GRADER_ERROR
    assert outcome.message == "the grade's process exited with code 3 before it answered; its last output: so long"
    assert "SystemExit" in (await grade("raise SystemExit")).message
    assert "ended by SIGSEGV" in (await grade("import ctypes; ctypes.string_at(0)")).message


async def test_endless_output_harms_nothing(grade: Grade) -> None:
    outcome = await grade("while True: print('x' * 2**20)")
    assert outcome.kind is OutcomeKind.GRADER_ERROR
    assert "File too large" in outcome.message
    noise = "import os\nfor fd in (1, 2): os.write(fd, b'\\x00\\x00\\x00\\x02{}' * 1000)\nscore = 1"
    assert (await grade(noise)).score == 1.0


async def test_memory_is_bounded(grade: Grade) -> None:
    assert "MemoryError" in (await grade("x = bytearray(8 * 2**30)")).message


async def test_garbage_for_an_answer_is_a_grader_error(grade: Grade) -> None:
    for garbage in ("b'\\xff\\xff\\xff\\xff'", "b'\\x00\\x00\\x00\\x02{}'", "b'\\x00\\x00\\x00\\x02[]'"):
        outcome = await grade(f"import os; os.write(3, {garbage}); import time; time.sleep(1e6)")
        assert outcome.kind is OutcomeKind.GRADER_ERROR
        assert "can't be read" in outcome.message


async def test_what_a_grade_writes_is_removed(grade: Grade, graders_directory: Path) -> None:
    program = """
import os
open('a', 'w').write('x'); os.symlink('/etc', 'link')
for _ in range(1100):
    os.mkdir('d' * 50); os.chdir('d' * 50)
os.mkdir('locked'); os.chmod('locked', 0)
score = 1.0
"""
    assert (await grade(program)).score == 1.0
    await assert_still_grading(grade)
    for _ in range(100):
        left = left_by_grades(graders_directory)
        if not left:
            break
        await asyncio.sleep(0.05)
    assert left == []


async def test_ordinary_python_works_inside(grade: Grade) -> None:
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


async def test_more_grades_than_processes_wait_their_turn(grade: Grade) -> None:
    outcomes = await asyncio.gather(*(grade("import time; time.sleep(0.05); score = 1") for _ in range(12)))
    assert sum(outcome.score for outcome in outcomes) == 12


async def test_a_dead_zygote_is_replaced(grade: Grade, graders_directory: Path) -> None:
    outcome = await grade("import os; score = os.getppid()")
    os.kill(int(outcome.score), signal.SIGKILL)
    for _ in range(100):
        again = await grade("import os; score = os.getppid()")
        if again.kind is OutcomeKind.SCORED:
            break
        assert again.kind is OutcomeKind.GRADER_ERROR
    assert again.score not in (0.0, outcome.score)
