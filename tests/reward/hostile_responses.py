"""Responses whose programs try to do harm, by class, made from templates and their parameters.

Harm is always something that can be seen, so that it can be shown without the sandbox too (`unprotected.py`): a program that has got what it
wanted prints HARM, goes on for ever, leaves a process, passes a test without having solved it, or leaves its judge without an answer. None takes
more of a machine than is needed to go beyond LIMITS: all are run without a sandbox.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum, auto
from textwrap import dedent
from typing import Any

from tests.reward import hostile_judges, hostile_limits, hostile_neighbours

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
    """It prints more than OUTPUT_BYTES, or its judge would have to keep that."""
    LEAVES = auto()
    """A process of it goes on when it has ended."""
    FORGES = auto()
    """`TESTS` pass, though it squares no number."""
    CONFUSES = auto()
    """The judge that takes a value from it fails, or does what the value says."""
    TRAPS = auto()
    """A judge that reads a file of it, or cleans up behind it, hangs, fails or finds something else."""


@dataclass(frozen=True)
class Response:
    """A program of a class, as the text of a response."""

    group: str
    name: str
    text: str
    harm: Harm

    def __str__(self) -> str:
        return f"{self.group}: {self.name}"

    def aimed(self, victim: str, left: str) -> Response:
        """One that means the process `sleep VICTIM`, and leaves a process `sleep LEFT`: of several that run at once each has its own."""
        text = self.text.replace(hostile_neighbours.VICTIM, victim).replace(hostile_limits.LEFT, left)
        return replace(self, text=text)


# What programs that forge are tested by: `square` is to be written.
TESTS = """
def check(candidate):
    assert candidate(3) == 9
    assert candidate(10) == 100
    assert candidate(-2) == 4
"""
PROMPT = 'def square(x):\n    """The square of x."""\n'


def columns(response: Response) -> dict[str, Any]:
    """The columns of the row that the response answers."""
    if response.harm is Harm.FORGES:
        return {"prompt": PROMPT, "test": TESTS, "entry_point": "square"}
    if response.harm is Harm.CONFUSES:
        return {"input_output": '{"inputs": [[3]], "outputs": [9], "fn_name": "square"}'}
    return {"input_output": '{"inputs": [""], "outputs": ["HARM"]}'}


def _made(group: str, harm: Harm, variants: Iterator[tuple[str, str]]) -> Iterator[Response]:
    begin = _BEGIN if harm not in (Harm.FORGES, Harm.CONFUSES) else ""
    for name, text in variants:
        yield Response(group, name, begin + dedent(text), harm)


GROUPS: dict[str, tuple[Harm, Iterator[tuple[str, str]]]] = {
    "processes": (Harm.PRINTS, hostile_limits.processes()),
    "memory": (Harm.PRINTS, hostile_limits.memory()),
    "memory of a tree": (Harm.PRINTS, hostile_limits.memory_of_trees()),
    "files": (Harm.PRINTS, hostile_limits.files()),
    "output": (Harm.PRINTS_MUCH, hostile_limits.output()),
    "a busy loop": (Harm.RUNS_ON, hostile_limits.busy()),
    "sleeping": (Harm.RUNS_ON, hostile_limits.sleeping()),
    "leaving processes": (Harm.LEAVES, hostile_limits.leaving()),
    "signals": (Harm.PRINTS, hostile_neighbours.signals()),
    "reading": (Harm.PRINTS, hostile_neighbours.reading()),
    "writing": (Harm.PRINTS, hostile_neighbours.writing()),
    "the network": (Harm.PRINTS, hostile_neighbours.network()),
    "tracing": (Harm.PRINTS, hostile_neighbours.tracing()),
    "forging an exit": (Harm.FORGES, hostile_judges.forging()),
    "patching": (Harm.FORGES, hostile_judges.patching()),
    "values": (Harm.CONFUSES, hostile_judges.values()),
    "traps": (Harm.TRAPS, hostile_judges.traps()),
}
RESPONSES = {str(response): response for group, made in GROUPS.items() for response in _made(group, *made)}
# Every eighth of each class, and so at least one.
SAMPLE = [
    name
    for group in GROUPS
    for index, name in enumerate(n for n, r in RESPONSES.items() if r.group == group)
    if index % 8 == 0
]
