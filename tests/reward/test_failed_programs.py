"""Whatever a program does, its grade is what its program is worth: no grader error, for which a whole group would be dropped, and no pass."""

import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from longboat_crds.rewards import RewardSpec
from longboat_graders.messages import FunctionOutcome, OutcomeKind
from longboat_graders.result import RewardSample
from longboat_runtime.reward.client import GraderClient
from tests.reward.conftest import LONG, running_graders

MIB = 2**20
TESTS = """
import pytest
from solution import f

@pytest.mark.parametrize("number", [1, 2, 3])
def test_f(number):
    assert f(number) == number
"""
STAR_TESTS = TESTS.replace("import f", "import *")
SKIPPED_TESTS = """
import pytest, solution

@pytest.mark.skipif(solution.SLOW, reason="it would take too long")
def test_f():
    assert solution.f(1) == 1
"""
# How programs end the tests of a file, or keep them from being found: test file, program.
ENDS = {
    "a missing function": (TESTS, "def g(number): return number"),
    "interrupting": (TESTS, "def f(number): raise KeyboardInterrupt"),
    "interrupting, by another name": (TESTS, "class Odd(KeyboardInterrupt): pass\ndef f(number): raise Odd"),
    "interrupting in a text": (
        TESTS,
        "class Odd:\n    def __repr__(self): raise KeyboardInterrupt\nkept = Odd()\ndef f(number): return kept",
    ),
    "exiting": (TESTS, "def f(number): raise SystemExit"),
    "ending": (TESTS, "import os\ndef f(number): os._exit(0)"),
    "ending in a text": (
        TESTS,
        "import os\nclass Odd:\n    def __repr__(self): os._exit(0)\nkept = Odd()\ndef f(number): raise ValueError(kept)",
    ),
    "a text that is too long": (TESTS, "def f(number): raise ValueError('x' * 60 * 2**20)"),
    "interrupting the import": (TESTS, "def __getattr__(name): raise KeyboardInterrupt"),
    "exiting at the import": (TESTS, "def __getattr__(name): raise SystemExit"),
    "ending at the import": (TESTS, "import os\ndef __getattr__(name): os._exit(0)"),
    "an odd error at the import": (TESTS, "def __getattr__(name): raise GeneratorExit"),
    "a plugin for pytest": (
        STAR_TESTS,
        "__all__ = ['f', 'pytest_plugins']\npytest_plugins = 'idlelib.idle'\ndef f(number): return number",
    ),
    "skipping all": (SKIPPED_TESTS, "SLOW = True\ndef f(number): return 0"),
}
PRINTS = {"input_output": json.dumps({"inputs": ["3"], "outputs": ["9"]})}
SQUARE = "print(int(input()) ** 2)"
# An honest program that uses sockets and processes as the standard library does.
ORDINARY = """
import asyncio, multiprocessing, shutil
async def cats():
    started = [await asyncio.create_subprocess_exec("cat", stdin=-1, stdout=-1) for _ in range(8)]
    return [await each.communicate(b"1") for each in started]
assert [out for out, _ in asyncio.run(cats())] == [b"1"] * 8
ours, theirs = multiprocessing.Pipe()
process = multiprocessing.get_context("fork").Process(target=theirs.send, args=(3,))
process.start(); process.join()
assert ours.recv() == 3
open("script", "w").write("#!/bin/sh\\necho $(($1 * $1))"); shutil.copy("script", "copy")
import os, subprocess
os.chmod("copy", 0o755)
print(subprocess.run(["./copy", input()], capture_output=True, text=True).stdout)
"""
# Memory that the kernel holds for them: in sockets that nobody reads, and in page tables.
SOCKETS = """
import os, socket, time
for _ in range(8):
    if os.fork() == 0: break
kept = [socket.socketpair() for _ in range(50)]
for pair in kept:
    for each in pair:
        each.setblocking(False)
        try:
            while True: each.send(bytes(2**16))
        except BlockingIOError: pass
time.sleep(1e6)
"""
PAGE_TABLES = """
import mmap, time
kept = mmap.mmap(-1, 2**37, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, prot=mmap.PROT_READ)
for at in range(0, 2**37, 2**21): kept[at]
time.sleep(1e6)
"""


@pytest.fixture(scope="module")
def graders(graders_directory: Path) -> Iterator[Path]:
    """Graders on a machine where options are set for other runs of pytest, which change no grade."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTEST_ADDOPTS", "--collect-only")
        patch.setenv("PYTEST_PLUGINS", "no_such_module")
        with running_graders(graders_directory) as socket:
            yield socket


@pytest_asyncio.fixture
async def client(graders: Path) -> AsyncIterator[GraderClient]:
    client = GraderClient(graders)
    sandbox = {"credit": "Fraction", "memory": "128Mi"}
    reward = RewardSpec.model_validate({"name": "code", "kind": "Sandbox", "sandbox": sandbox})
    assert await client.load(reward, "spec.rewards[0]") is None
    yield client
    await client.close()


async def grade(client: GraderClient, program: str, row: dict[str, Any]) -> FunctionOutcome:
    return await client.grade("code", RewardSample(program, "", columns=row), LONG, 0)


@pytest.mark.parametrize("name", ENDS)
async def test_a_program_that_ends_its_tests_has_failed_them(client: GraderClient, name: str) -> None:
    tests, program = ENDS[name]
    outcome = await grade(client, program, {"test": tests})
    assert (outcome.kind, outcome.score) == (OutcomeKind.SCORED, 0.0), outcome


async def test_what_passed_before_still_counts(client: GraderClient) -> None:
    for end in ("raise KeyboardInterrupt", "raise SystemExit", "import os; os._exit(0)"):
        outcome = await grade(client, f"def f(number):\n    if number == 1: return 1\n    {end}", {"test": TESTS})
        assert (outcome.kind, round(outcome.score, 2)) == (OutcomeKind.SCORED, 0.33), outcome


async def test_a_test_may_expect_a_program_to_exit(client: GraderClient) -> None:
    tests = "import pytest, solution\ndef test_exit():\n    with pytest.raises(SystemExit): solution.main()"
    assert (await grade(client, "import sys\ndef main(): sys.exit(2)", {"test": tests})).score == 1.0


async def test_a_file_without_tests_is_the_rows_fault(client: GraderClient) -> None:
    outcome = await grade(client, "def f(number): return number", {"test": "import solution\ntest_it = 3"})
    assert outcome.kind is OutcomeKind.GRADER_ERROR
    assert "no test that pytest finds" in outcome.message


async def test_a_program_that_kills_itself_has_crashed(client: GraderClient) -> None:
    outcome = await grade(client, "import os; os.kill(os.getpid(), 9)", PRINTS)
    assert (outcome.kind, outcome.score) == (OutcomeKind.SCORED, 0.0)
    assert "crashed" in outcome.message


async def test_directories_above_keep_their_rights(client: GraderClient) -> None:
    """They are those of all grades: without them none could be started."""
    for above in ("..", "../..", "../../.."):
        program = f"import os\nos.chmod({above!r}, 0)\nassert os.stat({above!r}).st_mode & 0o700 == 0o700\n{SQUARE}"
        for outcome in (await grade(client, program, PRINTS), await grade(client, SQUARE, PRINTS)):
            assert (outcome.kind, outcome.score) == (OutcomeKind.SCORED, 1.0), outcome


@pytest.mark.parametrize("program", [SOCKETS, PAGE_TABLES], ids=["sockets", "page tables"])
async def test_memory_that_the_kernel_holds_for_a_program_counts(client: GraderClient, program: str) -> None:
    outcome = await grade(client, program, PRINTS)
    assert (outcome.kind, outcome.score) == (OutcomeKind.SCORED, 0.0), outcome
    assert "used too much memory" in outcome.message


async def test_ordinary_programs_are_not_in_the_way_of_any_limit(client: GraderClient) -> None:
    assert (await grade(client, ORDINARY, PRINTS)).score == 1.0
