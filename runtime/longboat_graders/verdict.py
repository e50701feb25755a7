"""Judges whether a program printed or returned what was expected, and what that is worth. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from itertools import zip_longest

TYPE_CHECKING = False  # `typing` itself would be in the memory of every grader
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Any

# How far a number with a fraction may be from the expected one: absolutely below 1, else relative to it.
TOLERANCE = 1e-6
# A token longer than this isn't read as a number.
_NUMBER_CHARACTERS = 400


class CaseResult(StrEnum):
    """Says how a test case ended. All but PASSED count alike for the score; TIMEOUT is told apart in the grade's outcome."""

    PASSED = "passed"
    WRONG = "wrong answer"
    CRASHED = "crashed"
    TIMEOUT = "timed out"
    MEMORY = "used too much memory"
    PROCESSES = "started too many processes"
    FILES = "wrote too much to files"
    OUTPUT = "printed too much"


@dataclass(frozen=True, slots=True)
class Score:
    """Holds what a program is worth, whether a timeout decides that, and a line for people."""

    score: float
    timed_out: bool
    message: str


def score_of(results: Sequence[CaseResult], cases: int, *, fraction: bool) -> Score:
    """Scores a program with these results of the first of `cases` test cases; the others weren't run, which is no pass.

    Without any case nothing has passed: that counts as one case that failed.

    All or nothing: 1 if all pass, else 0; it is a timeout if the first case that doesn't pass timed out. With `fraction` the part of
    the cases that pass; a timeout if none does and one timed out: a program that passes others isn't too slow for the task.
    """
    cases = max(cases, len(results), 1)
    passed = sum(result is CaseResult.PASSED for result in results)
    if passed == cases:
        return Score(1.0, False, "")
    all_results = [*results, CaseResult.WRONG]
    failed = next(index for index, result in enumerate(all_results) if result is not CaseResult.PASSED)
    decisive = all_results[failed]
    message = f"case {failed + 1} of {cases}: {decisive.value}"
    if fraction:
        some = passed > 0
        return Score(
            passed / cases,
            not some and CaseResult.TIMEOUT in results,
            f"{passed} of {cases} cases passed; {message}",
        )
    return Score(0.0, decisive is CaseResult.TIMEOUT, message)


def same_output(printed: str, expected: str) -> bool:
    """Whether the lines are the same, but for empty ones and for how much white space there is between words.

    Two numbers may differ by TOLERANCE if either has a fraction or an exponent.
    """
    return all(
        mine is not None
        and right is not None
        and len(mine) == len(right)
        and all(_same_word(a, b) for a, b in zip(mine, right, strict=True))
        for mine, right in zip_longest(_lines_of_words(printed), _lines_of_words(expected))
    )


def _lines_of_words(text: str) -> Iterator[list[str]]:
    """Yields the words of each line that has any, line by line: all words of a long output at once would be many times its size."""
    return (words for line in text.splitlines() if (words := line.split()))


def _same_word(printed: str, expected: str) -> bool:
    if printed == expected:
        return True
    if max(len(printed), len(expected)) > _NUMBER_CHARACTERS or not (_fractional(printed) or _fractional(expected)):
        return False
    try:
        return _close(float(printed), float(expected))
    except ValueError:
        return False


def _fractional(word: str) -> bool:
    return "." in word or "e" in word or "E" in word


def _close(actual: float, wanted: float) -> bool:
    if not (math.isfinite(actual) and math.isfinite(wanted)):
        return actual == wanted
    return abs(actual - wanted) <= TOLERANCE * max(1.0, abs(wanted))


def same_value(returned: Any, expected: Any, *, wrapped: bool = False) -> bool:
    """Whether a function returned what was expected, which came from JSON.

    Tuples are lists, keys of objects may be the numbers that they spell, and two numbers may differ by TOLERANCE if either is a float.
    Where `wrapped`, what is in the expected list of one is right as well.
    """
    try:
        return _same(returned, expected) or (wrapped and _same(returned, expected[0]))
    except (RecursionError, OverflowError):
        return False


def _same(actual: Any, wanted: Any) -> bool:
    if isinstance(wanted, (list, tuple)):
        return (
            isinstance(actual, (list, tuple))
            and len(actual) == len(wanted)
            and all(_same(a, b) for a, b in zip(actual, wanted, strict=True))
        )
    if isinstance(wanted, dict):
        if not isinstance(actual, dict) or len(actual) != len(wanted):
            return False
        named = {str(key): value for key, value in actual.items()}
        return len(named) == len(actual) and all(
            str(key) in named and _same(named[str(key)], value) for key, value in wanted.items()
        )
    if isinstance(actual, (list, tuple, dict)):
        return False
    if isinstance(actual, bool) or isinstance(wanted, bool):
        return type(actual) is type(wanted) and actual == wanted
    if isinstance(actual, float) or isinstance(wanted, float):
        return isinstance(actual, (int, float)) and isinstance(wanted, (int, float)) and _close(actual, wanted)
    return bool(actual == wanted)
