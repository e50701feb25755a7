"""What makes Auto fall back to a process for each grade, what doesn't, and what a process that stays is replaced for."""

import asyncio
import base64
import importlib.util
import json
import marshal
import os
import pickle
import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytest_asyncio

from longboat_crds.rewards import RewardSpec
from longboat_graders.messages import OutcomeKind
from longboat_graders.result import RewardSample
from longboat_runtime.reward.client import GraderClient
from tests.reward.conftest import LONG

# Functions that run what is in a response, each by another door, and swallow all that Python can raise.
DOORS = {
    "exec": "exec(text)",
    "eval": "eval(text)",
    "compile": "compile(text, 'answer', 'eval')",
    "a forged file name": "exec(compile(text, json.__file__, 'exec'))",
    "pickle": "pickle.loads(base64.b64decode(text))",
    "pure Python's pickle": "pickle._loads(base64.b64decode(text))",
    "marshal": "marshal.loads(base64.b64decode(text))",
    "a function from parts": "types.FunctionType(f.__code__, {})()",
    "code from parts": "f.__code__.replace(co_consts=(None, 7))",
    "a function's code": "setattr(g, '__code__', f.__code__)",
    "runpy": "open('answer.py', 'w').write(text); runpy.run_path('answer.py')",
    "an import": "open('answer.py', 'w').write(text); sys.path.insert(0, os.getcwd()); import answer",
    "an import of bytecode": "open('a.pyc', 'wb').write(base64.b64decode(text)); sys.path.insert(0, os.getcwd()); import a",
    "timeit": "timeit.timeit(text, number=1)",
    "code": "code.InteractiveInterpreter().runsource(text)",
    "doctest": "doctest.run_docstring_examples('>>> ' + text, {})",
    "a thread": "thread = threading.Thread(target=exec, args=(text,)); thread.start(); thread.join()",
    "sympy, an attribute": "sympy.parse_expr('x.__class__')",
    "sympy, a builtin": "sympy.parse_expr('setattr(x, chr(97), 1)')",
    "sympy, a program": "sympy.lambdify(sympy.Symbol('x'), 'x.name')",
    "sympy, a method": "sympy.Symbol('x'); sympy.sympify('Symbol(chr(120)).default_assumptions.clear()')",
    "ctypes": "ctypes.CDLL(None)",
    "a fork": "os.fork() or os._exit(0)",
    "a program": "subprocess.run(['true'])",
    "a shell": "os.system('true')",
    "posix_spawn": "os.posix_spawn('/bin/true', ['true'], {})",
    "a fork by a library": "pty.fork()[0] or os._exit(0)",
    "all objects": "gc.get_objects()",
    "tracing": "sys.settrace(None)",
}
# What functions do in every grade and may.
HARMLESS = {
    "json": "json.loads('[1]')",
    "literals": "ast.literal_eval('[1]')",
    "a tree": "ast.parse('import os')",
    "patterns": "re.search(text[:1] + 'x?', text)",
    "arithmetic by sympy": "sympy.parse_expr('2*x + sqrt(3)/factorial(3) - 1.5')",
    "polynomials by sympy": "sympy.factor(sympy.sympify('x**2 - 1'))",
    "math-verify": "assert math_verify.verify(*(math_verify.parse(t, parsing_timeout=600) for t in ('$1/2$', '0.5')), timeout_seconds=600)",
    "a module that is imported late": "import fractions, calendar, xml.dom.minidom",
    "classes that are imported late": "import http.server, concurrent.futures",
    "a thread that ends": "thread = threading.Thread(target=len, args=('',)); thread.start(); thread.join()",
    "a file that is removed": "open('x', 'w').close(); os.remove('x')",
    "an alarm that is cancelled": "signal.signal(signal.SIGALRM, lambda *_: None); signal.alarm(5); signal.alarm(0); signal.signal(signal.SIGALRM, signal.SIG_DFL)",
    "output": "print('x' * 100_000)",
    "an error": "1 / 0",
}
IMPORTS = """
import ast, base64, code, ctypes, doctest, gc, importlib.util, json, marshal, os, pickle, pty, re, runpy, signal, subprocess, sys, threading, timeit, types
def f(): return 5
def g(): return 6
"""
# Imports that take seconds, for functions that use them.
LIBRARIES = """
import math_verify, sympy
assert math_verify.parse('$1/2$', parsing_timeout=600)
sympy.factor(sympy.sympify('x**2 - 1'))
"""


def source(bodies: dict[str, str]) -> str:
    """Makes a module with a function for each body, chosen by the prompt; all return 7 whatever happens."""
    functions = (
        f"def f{number}(sample):\n    text = sample.text\n    try:\n        {body}\n    except BaseException: pass\n    return 7.0\n"
        for number, body in enumerate(bodies.values())
    )
    return IMPORTS + "\n".join(functions) + "\ndef choose(sample): return globals()['f' + sample.prompt](sample)\n"


def text_for(door: str) -> str:
    if "pickle" in door:
        return base64.b64encode(pickle.dumps(os.getpid, protocol=0)).decode()
    code = marshal.dumps(compile("1", json.__file__, "exec"))
    if door == "marshal":
        return base64.b64encode(code).decode()
    if door == "an import of bytecode":
        return base64.b64encode(importlib.util.MAGIC_NUMBER + bytes(12) + code).decode()
    return "1 + 1"


@pytest_asyncio.fixture
async def client(graders: Path) -> AsyncIterator[GraderClient]:
    client = GraderClient(graders)
    yield client
    await client.close()


async def load(client: GraderClient, path: Path, function: str, name: str, **settings: Any) -> None:
    reward = RewardSpec.model_validate({"name": name, "function": f"{path}:{function}", **settings})
    assert await client.load(reward, "spec.rewards[0]") is None


async def replaced(client: GraderClient, name: str) -> dict[str, int]:
    return (await client.state())["rewards"][name]["replaced"]


@pytest.fixture(scope="module")
def functions(graders_directory: Path) -> Path:
    path = graders_directory / "doors.py"
    path.write_text(source(ALL))
    return path


@pytest.fixture(scope="module")
def functions_of_libraries(graders_directory: Path) -> Path:
    path = graders_directory / "doors_of_libraries.py"
    path.write_text(LIBRARIES + source(ALL))
    return path


ALL = DOORS | HARMLESS
ORDER = [*ALL]


async def test_harmless_functions_keep_their_processes(client: GraderClient, functions_of_libraries: Path) -> None:
    await load(client, functions_of_libraries, "choose", "harmless")
    for name in HARMLESS:
        for _ in range(2):
            sample = RewardSample("1 + 1", str(ORDER.index(name)))
            outcome = await client.grade("harmless", sample, LONG, 0)
            assert (outcome.kind, outcome.score) == (OutcomeKind.SCORED, 7.0), (name, outcome)
            assert client.isolation["harmless"].isolation == "Auto", (name, client.isolation["harmless"])
    assert await replaced(client, "harmless") == {}


@pytest.mark.parametrize("door", DOORS)
async def test_every_door_is_watched(
    client: GraderClient, functions: Path, functions_of_libraries: Path, door: str
) -> None:
    """The function swallows what it can, so a score of 7 comes from a process of its own."""
    name = f"door-{ORDER.index(door)}"
    await load(client, functions_of_libraries if "sympy" in door else functions, "choose", name)
    outcome = await client.grade(name, RewardSample(text_for(door), str(ORDER.index(door))), LONG, 0)
    in_force = client.isolation[name]
    assert in_force.isolation == "PerGrade", in_force
    assert in_force.reason
    assert "\n" not in in_force.reason
    assert (outcome.kind, outcome.score) == (OutcomeKind.SCORED, 7.0), outcome


async def test_the_reason_names_the_line(client: GraderClient, graders_directory: Path) -> None:
    path = graders_directory / "evaluates.py"
    path.write_text("def reward(sample):\n    return eval(sample.text)\n")
    await load(client, path, "reward", "evaluates")
    outcomes = await asyncio.gather(
        *(client.grade("evaluates", RewardSample(f"{n} * 2", ""), LONG, 0) for n in range(9))
    )
    assert [outcome.score for outcome in outcomes] == [n * 2 for n in range(9)]
    assert client.isolation["evaluates"].reason == f"a grade compiles code ({path} line 2)"


async def test_a_fork_that_nothing_announces_is_killed(client: GraderClient, graders_directory: Path) -> None:
    """By the kernel. `ctypes`, loaded when the function is imported, is what an extension module would do."""
    path = graders_directory / "extension.py"
    path.write_text(
        "import _posixsubprocess, os, time\n"
        "def reward(sample):\n"
        "    try:\n"
        "        pid = _posixsubprocess.fork_exec([b'/bin/true'], [b'/bin/true'], True, (), None, None, -1, -1, -1, -1, -1, -1, *os.pipe(),\n"
        "                                         True, False, -1, None, None, None, -1, None, False)\n"
        "        os.waitpid(pid, 0)\n"
        "    except Exception: return 0.0\n"
        "    return 7.0\n"
    )
    await load(client, path, "reward", "extension")
    assert (await client.grade("extension", RewardSample("", ""), LONG, 0)).score == 7.0
    assert client.isolation["extension"].reason == "it starts a process or a program"
    await load(client, path, "reward", "extension", isolation="Shared")
    outcome = await client.grade("extension", RewardSample("", ""), LONG, 0)
    assert outcome.kind is OutcomeKind.GRADER_ERROR
    assert "SIGSYS" in outcome.message
    assert client.isolation["extension"].isolation == "Shared"


async def test_what_is_known_needs_no_learning_again(
    client: GraderClient, graders: Path, graders_directory: Path
) -> None:
    path = graders_directory / "known.py"
    path.write_text("def reward(sample): return eval(sample.text)\n")
    reward = RewardSpec(name="known", function=f"{path}:reward")
    assert await client.load(reward, "spec.rewards[0]", per_grade="a grade compiles code") is None
    assert client.isolation["known"].isolation == "PerGrade"
    assert client.isolation["known"].reason == "a grade compiles code"
    other = GraderClient(graders)
    assert await other.load(reward, "spec.rewards[0]") is None
    assert other.isolation["known"].reason == "a grade compiles code"
    await other.close()


@pytest.mark.parametrize("isolation", ["Auto", "PerGrade"])
async def test_random_numbers_are_the_samples(client: GraderClient, graders_directory: Path, isolation: str) -> None:
    path = graders_directory / "draws.py"
    path.write_text("import random\nimport numpy\ndef reward(sample): return random.random() + numpy.random.random()\n")
    await load(client, path, "reward", "draws", isolation=isolation)
    seeds = [3, 5, 3, 2**62, 5, 3]
    outcomes = await asyncio.gather(*(client.grade("draws", RewardSample("", ""), LONG, seed) for seed in seeds))
    scores = [outcome.score for outcome in outcomes]
    assert [scores.index(score) for score in scores] == [0, 1, 0, 3, 1, 0]
    expected = [random.Random(seed).random() + np.random.RandomState(seed % 2**32).random_sample() for seed in seeds]
    assert scores == pytest.approx(expected)


async def test_a_zygote_holds_nothing_that_is_not_needed(client: GraderClient, graders_directory: Path) -> None:
    path = graders_directory / "bare.py"
    path.write_text(
        "import sys\nloaded = {m.partition('.')[0] for m in sys.modules}\nimport sympy\ndef reward(sample): return float(sample.text in loaded)\n"
    )
    await load(client, path, "reward", "bare")
    unwanted = [
        "asyncio",
        "logging",
        "numpy",
        "pathlib",
        "pydantic",
        "ray",
        "structlog",
        "subprocess",
        "tempfile",
        "typing",
        "yaml",
    ]
    for module in unwanted:
        assert (await client.grade("bare", RewardSample(module, ""), LONG, 0)).score == 0.0, module
    footprint = (await client.state())["rewards"]["bare"]["footprint"]
    assert {"sympy", "mpmath"} <= footprint["modules"].keys()
    assert footprint["resident"] > 2**20
    assert 0 < footprint["fork"] < 1
