"""Responses whose programs try to do harm, by class, made from templates and their parameters.

Harm is always something that can be seen, so that it can be shown without the sandbox too (`unprotected.py`): a program that has got what it
wanted prints HARM, goes on for ever, leaves a process, passes a test without having solved it, or leaves its case runner without an answer. None takes
more of a machine than is needed to go beyond LIMITS: all are run without a sandbox. Some of every class are run by a command too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from enum import StrEnum, auto
from itertools import chain, groupby
from textwrap import dedent
from typing import Any

from tests.reward import hostile_case_runners, hostile_limits, hostile_neighbours

# Of the sandbox in which they are tried; `unprotected.py` looks for more than that.
LIMITS = {"memory": "128Mi", "processes": 24, "fileSize": "16Mi", "outputSize": "1Mi"}
MIB = 2**20
OUTPUT_BYTES = 1 * MIB

_BEGIN = """
import os, sys, time
def harm():
    os.write(1, b"HARM\\n")
def attempt(call, *arguments, **named):
    try:
        call(*arguments, **named)
    except Exception:
        return
    harm()
"""


class Harm(StrEnum):
    """What shows that a program has done its harm."""

    PRINTS = auto()
    """It prints HARM."""
    RUNS_ON = auto()
    """It doesn't end."""
    PRINTS_MUCH = auto()
    """It prints more than OUTPUT_BYTES, or its case runner would have to keep that."""
    LEAVES = auto()
    """A process of it goes on when it has ended."""
    FORGES = auto()
    """`TESTS` pass, or TEST_FILE does, though it squares no number, or the case runner can't say that they don't."""
    CONFUSES = auto()
    """The case runner that takes a value from it fails, or does what the value says."""
    TRAPS = auto()
    """A case runner that reads a file of it, or cleans up behind it, hangs, fails or finds something else."""


class Way(StrEnum):
    """How a program is run."""

    PYTHON = auto()
    """As Python programs are, against the tests that its harm is shown by."""
    TEST_FILE = auto()
    """As the module that TEST_FILE imports."""
    COMMAND = auto()
    """By a command, as programs in other languages are."""


@dataclass(frozen=True)
class Response:
    """A program of a class, as the text of a response."""

    group: str
    name: str
    text: str
    harm: Harm
    way: Way = Way.PYTHON

    def __str__(self) -> str:
        return f"{self.group}: {self.name}"

    def aimed(self, victim: str, left: str, watched: float) -> Response:
        """Returns a copy that attacks process `sleep VICTIM` and leaves process `sleep LEFT`: copies that run at once have their own.

        It waits `watched` seconds before it reports success.
        """
        text = self.text.replace(hostile_neighbours.VICTIM, victim).replace(hostile_limits.LEFT, left)
        return replace(self, text=text.replace(hostile_limits.WATCHED, str(watched)))


# What programs that forge are tested by: `square` is to be written.
TESTS = """
def check(candidate):
    assert candidate(3) == 9
    assert candidate(10) == 100
    assert candidate(-2) == 4
"""
TEST_FILE = """
import pytest
from solution import square

def test_small():
    assert square(3) == 9

@pytest.mark.parametrize(("number", "expected"), [(10, 100), (-2, 4)])
def test_others(number, expected):
    assert square(number) == expected
"""
PROMPT = 'def square(x):\n    """The square of x."""\n'


def columns(response: Response) -> dict[str, Any]:
    """The columns of the row that the response answers."""
    if response.way is Way.TEST_FILE:
        return {"test": TEST_FILE}
    if response.harm is Harm.FORGES:
        return {"prompt": PROMPT, "test": TESTS, "entry_point": "square"}
    if response.harm is Harm.CONFUSES:
        return {"input_output": '{"inputs": [[3]], "outputs": [9], "fn_name": "square"}'}
    return {"input_output": '{"inputs": [""], "outputs": ["HARM"]}'}


def _made(
    group: str, harm: Harm, variants: Iterator[tuple[str, str]], way: Way = Way.PYTHON
) -> Iterator[tuple[str, Response]]:
    begin = _BEGIN if harm not in (Harm.FORGES, Harm.CONFUSES) else ""
    for name, text in variants:
        response = Response(group, name, begin + dedent(text), harm, way)
        yield str(response), response


def _by_command(responses: Iterable[Response]) -> Iterator[tuple[str, Response]]:
    """Every sixth of each class whose harm doesn't depend on who calls its functions."""
    able = [each for each in responses if each.harm not in (Harm.FORGES, Harm.CONFUSES) and each.way is Way.PYTHON]
    for _, of_group in groupby(able, key=lambda each: each.group):
        for each in [*of_group][::6]:
            response = replace(each, group="a command", name=str(each), way=Way.COMMAND)
            yield str(response), response


_BY_PYTHON = dict(
    chain(
        _made("processes", Harm.PRINTS, hostile_limits.processes()),
        _made("memory", Harm.PRINTS, hostile_limits.memory()),
        _made("memory of a tree", Harm.PRINTS, hostile_limits.memory_of_trees()),
        _made("files", Harm.PRINTS, hostile_limits.files()),
        _made("output", Harm.PRINTS_MUCH, hostile_limits.output()),
        _made("a busy loop", Harm.RUNS_ON, hostile_limits.busy()),
        _made("sleeping", Harm.RUNS_ON, hostile_limits.sleeping()),
        _made("leaving processes", Harm.LEAVES, hostile_limits.leaving()),
        _made("signals", Harm.PRINTS, hostile_neighbours.signals()),
        _made("reading", Harm.PRINTS, hostile_neighbours.reading()),
        _made("writing", Harm.PRINTS, hostile_neighbours.writing()),
        _made("the network", Harm.PRINTS, hostile_neighbours.network()),
        _made("tracing", Harm.PRINTS, hostile_neighbours.tracing()),
        _made("forging an exit", Harm.FORGES, hostile_case_runners.forging()),
        _made("patching", Harm.FORGES, hostile_case_runners.patching()),
        _made("a test file", Harm.FORGES, hostile_case_runners.deceiving_pytest(), Way.TEST_FILE),
        _made("a test file", Harm.RUNS_ON, hostile_case_runners.endless_calls(), Way.TEST_FILE),
        _made("a test file", Harm.LEAVES, hostile_case_runners.leaving_calls(), Way.TEST_FILE),
        _made("values", Harm.CONFUSES, hostile_case_runners.values()),
        _made("traps", Harm.TRAPS, hostile_case_runners.traps()),
    )
)
RESPONSES = _BY_PYTHON | dict(_by_command(_BY_PYTHON.values()))
GROUPS = tuple(dict.fromkeys(response.group for response in RESPONSES.values()))
# Every eighth of each class, and so at least one.
SAMPLE = [
    name
    for group in GROUPS
    for index, name in enumerate(n for n, r in RESPONSES.items() if r.group == group)
    if index % 8 == 0
]
