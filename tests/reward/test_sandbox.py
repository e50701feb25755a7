"""Programs in responses and their grades, for every format and kind of program, by real graders."""

import asyncio
import json
import re
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from structlog.testing import capture_logs

from longboat_crds.reasons import Reason
from longboat_crds.rewards import RewardSpec
from longboat_graders import server, socket_server
from longboat_graders.messages import FunctionOutcome, OutcomeKind
from longboat_graders.result import RewardSample
from longboat_graders.seccomp import can_ask
from longboat_graders.unenforced import missing
from longboat_runtime.reward.client import GraderClient
from tests.reward.conftest import LONG, graded

PAGE = Path(__file__).parents[2] / "docs/rewards.md"
# The limit, in seconds, of a case of a program that hangs.
SHORT = 0.5

ADD = "a, b = map(int, input().split())\nprint({})"
SORTED = (
    "class Solution:\n    def order(self, values: List[int], down: bool = False) -> List[int]:\n        return {}\n"
)
PRIME_CODE = {"ground_truth": json.dumps({"inputs": ["1 2\n", "5 6\n"], "outputs": ["3\n", "11\n"]})}
APPS = {
    "input_output": json.dumps(
        {"inputs": [[[3, 1, 2]], [[4, 5], True]], "outputs": [[[1, 2, 3]], [[5, 4]]], "fn_name": "order"}
    )
}
LIVE_CODE_BENCH = {
    "public_test_cases": json.dumps([{"input": "1 2", "output": "3", "testtype": "stdin"}]),
    "private_test_cases": json.dumps([{"input": "5 6", "output": "11", "testtype": "stdin"}]),
    "metadata": "{}",
}
HUMAN_EVAL = {
    "prompt": 'import math\n\ndef area(r: float) -> float:\n    """Of a circle."""\n',
    "test": "def check(candidate):\n    assert abs(candidate(1) - 3.14159) < 1e-3\n    assert candidate(0) == 0\n",
    "entry_point": "area",
}
# Programs that return bytes of a class of their own, as numpy has one.
BYTES = {"prompt": "", "test": "def check(candidate):\n    assert candidate(b'x') == b'x'\n", "entry_point": "same"}
OWN_BYTES = "class Own({}): pass\ndef same(value): return Own(value)"
PYTEST = {
    "test": """
import pytest
from solution import Account, Overdrawn, apply, counts

def test_deposit():
    account = Account(5)
    account.deposit(3)
    assert account.balance == 8

def test_overdrawn():
    with pytest.raises(Overdrawn, match="by 2"):
        Account(5).withdraw(7)

@pytest.mark.parametrize(("text", "expected"), [("aab", {"a": 2, "b": 1}), ("", {})])
def test_counts(text, expected):
    assert counts(text) == expected

def test_functions_are_called_back():
    assert apply(lambda value: value * 2, [1, 2]) == [2, 4]
"""
}
ACCOUNT = """
class Overdrawn(ValueError): pass

class Account:
    def __init__(self, balance): self.balance = balance
    def deposit(self, amount): self.balance += {amount}
    def withdraw(self, amount):
        if amount > self.balance: raise Overdrawn(f"by {{amount - self.balance}}")
        self.balance -= amount

def counts(text): return {{c: text.count(c) for c in text}}
def apply(function, values): return [function(value) for value in values]
"""
HANG, CRASH = "import time; time.sleep(1e6)", "raise RuntimeError('no idea')"
CASES: dict[str, tuple[dict[str, Any], dict[str, float | str]]] = {
    "prime_code": (
        PRIME_CODE,
        {ADD.format("a + b"): 1.0, ADD.format("3"): 0.5, ADD.format("a * b - 20"): 0.0, HANG: "timeout", CRASH: 0.0},
    ),
    "APPS": (
        APPS,
        {
            SORTED.format("sorted(values, reverse=down)"): 1.0,
            "def order(values, down=False): return sorted(values, reverse=down)": 1.0,
            SORTED.format("sorted(values)"): 0.5,
            "def other(): pass": 0.0,
            SORTED.format("__import__('time').sleep(1e6)"): "timeout",
            CRASH: 0.0,
        },
    ),
    "LiveCodeBench": (
        LIVE_CODE_BENCH,
        {ADD.format("a + b"): 1.0, ADD.format("3"): 0.5, ADD.format("a - b"): 0.0, HANG: "timeout", CRASH: 0.0},
    ),
    "HumanEval": (
        HUMAN_EVAL,
        {
            "    return math.pi * r**2\n": 1.0,
            "def area(r):\n    return math.pi * r * r": 1.0,
            "    return 2 * math.pi * r\n": 0.0,
            "    while True: pass\n": "timeout",
            CRASH: 0.0,
        },
    ),
    "bytes": (BYTES, {OWN_BYTES.format("bytes"): 1.0, OWN_BYTES.format("bytearray"): 1.0}),
    "Pytest": (
        PYTEST,
        {ACCOUNT.format(amount="amount"): 1.0, ACCOUNT.format(amount="0"): 0.8, HANG: "timeout", CRASH: 0.0},
    ),
}

# Asks as on Linux 5.4, where the answer that lets a call go on is refused (SECCOMP_IOCTL_NOTIF_SEND).
LINUX_5_4 = """
import errno, os
from longboat_graders import prctl
from longboat_graders.seccomp import Filter, can_ask, number
prctl.gain_no_privileges()
load, equal, leave, second_argument = 0x20, 0x15, 0x06, 16 + 8
Filter([
    (load, 0, 0, 0), (equal, 0, 3, number("ioctl", os.uname().machine)),
    (load, 0, 0, second_argument), (equal, 0, 1, 0xC0182101), (leave, 0, 0, 0x00050000 | errno.EINVAL),
    (leave, 0, 0, 0x7FFF0000),
]).install()
print(can_ask())
"""


@pytest_asyncio.fixture
async def client(graders: Path) -> AsyncIterator[GraderClient]:
    client = GraderClient(graders)
    yield client
    await client.close()


async def load(client: GraderClient, **sandbox: Any) -> None:
    reward = RewardSpec.model_validate({"name": "code", "kind": "Sandbox", "sandbox": sandbox})
    assert await client.load(reward, "spec.rewards[0]") is None


async def grade(client: GraderClient, program: str, row: dict[str, Any], seconds: float = LONG) -> FunctionOutcome:
    sample = RewardSample(f"So:\n```python\n{program}\n```\n", "", row.get("ground_truth"), columns=row)
    return await graded(client, "code", sample, seconds)


@pytest.mark.parametrize("name", CASES)
async def test_programs_are_worth_the_part_of_the_cases_that_they_pass(client: GraderClient, name: str) -> None:
    await load(client, credit="Fraction")
    row, programs = CASES[name]
    for program, expected in programs.items():
        outcome = await grade(client, program, row, SHORT if expected == "timeout" else LONG)
        if expected == "timeout":
            assert (outcome.kind, outcome.score) == (OutcomeKind.TIMEOUT, 0.0), outcome
        else:
            assert (outcome.kind, outcome.score) == (OutcomeKind.SCORED, expected), (program, outcome)


async def test_without_partial_credit_the_first_case_that_fails_decides(client: GraderClient) -> None:
    await load(client)
    scores = [(await grade(client, ADD.format(what), PRIME_CODE)).score for what in ("a + b", "3")]
    assert scores == [1.0, 0.0]


async def test_messages_say_which_case_failed_and_how(client: GraderClient) -> None:
    await load(client)
    assert (await grade(client, ADD.format("3"), PRIME_CODE)).message == "case 2 of 2: wrong answer"
    assert (await grade(client, CRASH, PRIME_CODE)).message == "case 1 of 2: crashed (RuntimeError: no idea)"
    nothing = await client.grade("code", RewardSample("```\n```", "", columns=APPS), LONG, 0)
    assert (nothing.kind, nothing.score) == (OutcomeKind.WRONG_FORMAT, 0.0)


async def test_a_row_that_cannot_be_read_is_a_grader_error_not_a_zero(client: GraderClient) -> None:
    await load(client)
    outcome = await grade(client, "print(1)", {"input_output": "{"})
    assert outcome.kind is OutcomeKind.GRADER_ERROR
    assert "the row can't be graded" in outcome.message


async def test_no_more_cases_are_run_than_were_asked_for(client: GraderClient) -> None:
    await load(client, maxCases=1)
    assert (await grade(client, ADD.format("3"), PRIME_CODE)).score == 1.0


async def test_cpu_seconds_are_told(client: GraderClient) -> None:
    await load(client)
    outcome = await grade(client, ADD.format("a + b"), PRIME_CODE)
    assert outcome.score == 1.0
    assert outcome.cpu_seconds > 0.0


async def test_cases_share_nothing(client: GraderClient) -> None:
    await load(client)
    counting = "import os\nn = int(open('n').read()) if os.path.exists('n') else 0\nopen('n', 'w').write(str(n + 1))\n"
    outcome = await grade(client, counting + ADD.format("a + b + n"), PRIME_CODE)
    assert outcome.score == 1.0, outcome


@pytest.mark.skipif(shutil.which("gcc") is None, reason="needs a C compiler")
async def test_other_languages_are_run_by_command(client: GraderClient) -> None:
    await load(
        client,
        fileName="main.c",
        compileCommand=["gcc", "-o", "{directory}/program", "{file}"],
        runCommand=["{directory}/program"],
    )
    source = '#include <stdio.h>\nint main() {{ int a, b; scanf("%d %d", &a, &b); printf("%d\\n", {}); return 0; }}'
    assert (await grade(client, source.format("a + b"), PRIME_CODE)).score == 1.0
    assert (await grade(client, source.format("a - b"), PRIME_CODE)).score == 0.0
    broken = await grade(client, source.format("a +"), PRIME_CODE)
    assert (broken.kind, broken.score) == (OutcomeKind.SCORED, 0.0)
    assert "doesn't compile" in broken.message
    called = await grade(client, source.format("a + b"), APPS)
    assert called.kind is OutcomeKind.GRADER_ERROR


@pytest.mark.parametrize(
    ("sandbox", "field"),
    [
        ({"runCommand": ["brainf", "{file}"]}, "spec.rewards[3].sandbox.runCommand[0]"),
        ({"compileCommand": ["rustd"], "runCommand": ["true"]}, "spec.rewards[3].sandbox.compileCommand[0]"),
    ],
)
async def test_a_command_that_the_image_lacks_is_named(
    client: GraderClient, sandbox: dict[str, Any], field: str
) -> None:
    reward = RewardSpec.model_validate({"name": "typo", "kind": "Sandbox", "sandbox": sandbox})
    problem = await client.load(reward, "spec.rewards[3]")
    assert problem is not None
    assert (problem.reason, problem.field) == (Reason.COMMAND_NOT_FOUND, field)
    assert "Install it in the image" in problem.message


async def test_parameters_are_refused(client: GraderClient) -> None:
    reward = RewardSpec.model_validate({"name": "told", "kind": "Sandbox", "sandbox": {}, "parameters": {"a": 1}})
    problem = await client.load(reward, "spec.rewards[0]")
    assert problem is not None
    assert problem.field == "spec.rewards[0].parameters.a"


def test_what_a_node_cannot_enforce_depends_on_its_kernel_and_is_in_the_docs() -> None:
    assert missing(7, asks=True, tells_children=True) == []
    assert [len(missing(abi, asks=True, tells_children=True)) for abi in range(7)] == [4, 3, 3, 2, 1, 1, 0]
    (children,) = missing(7, asks=True, tells_children=False)
    assert "processes aren't counted" in children
    page = PAGE.read_text().replace("`", "")
    for line in missing(0, asks=False, tells_children=False):
        without = re.match(r"without (.+? \(.+?\))", line)
        assert without is not None
        assert f"\n| {without[1]} |" in page


def test_a_kernel_that_can_let_no_call_go_on_is_not_made_to_ask() -> None:
    assert can_ask()
    done = subprocess.run([sys.executable, "-c", LINUX_5_4], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


async def test_what_the_node_cannot_enforce_is_told_at_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = missing(2, asks=True, tells_children=False)
    monkeypatch.setattr(server, "unenforced", lambda: lines)
    graders, stop = server.GraderServer(1, tmp_path, cgroup=None), asyncio.Event()
    stop.set()
    with capture_logs() as logs:
        await graders.serve(socket_server.listen(tmp_path / "graders.sock"), stop)
    assert [log["missing"] for log in logs if log["log_level"] == "warning"] == lines
    assert graders.state()["unenforced"] == lines
