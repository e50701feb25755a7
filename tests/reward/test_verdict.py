"""When an answer is right, and what right answers are worth."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longboat_graders.verdict import CaseResult, same_output, same_value, score_of

PASSED, WRONG, TIMEOUT = CaseResult.PASSED, CaseResult.WRONG, CaseResult.TIMEOUT


@pytest.mark.parametrize(
    ("printed", "expected", "same"),
    [
        ("3\n", "3", True),
        ("3 \n\n", "\n3", True),
        ("1  2\n3\n", "1 2\r\n3", True),
        ("1\n2\n", "1 2", False),
        ("0.30000000000000004", "0.3", True),
        ("0.3001", "0.3", False),
        ("1e3", "1000", True),
        ("1000000.5", "1000000.6", True),
        ("1000000000000000001", "1000000000000000002", False),
        ("nan", "NaN", False),
        ("inf", "inf", True),
        ("Yes", "YES", False),
        ("3", "", False),
        ("", "", True),
        ("1.0" * 1000, "1.0", False),
    ],
)
def test_outputs_are_compared_by_line_word_and_number(printed: str, expected: str, same: bool) -> None:
    assert same_output(printed, expected) is same


@pytest.mark.parametrize(
    ("returned", "expected", "same"),
    [
        (3, 3, True),
        ((1, [2, (3,)]), [1, [2, [3]]], True),
        ({1: "a"}, {"1": "a"}, True),
        ({"1": 1, 1: 1}, {"1": 1}, False),
        (0.1 + 0.2, 0.3, True),
        (3.0, 3, True),
        (True, 1, False),
        (1, True, False),
        (True, True, True),
        ("3", 3, False),
        ([], None, False),
        (None, None, True),
        ({1, 2}, [1, 2], False),
        (float("nan"), float("nan"), False),
        ([1, 2], [1, 2, 3], False),
        (10**400, 1.5, False),
    ],
)
def test_values_are_compared_as_the_json_that_they_come_from(returned: Any, expected: Any, same: bool) -> None:
    assert same_value(returned, expected) is same


def test_a_value_in_a_list_of_one_may_be_meant_itself() -> None:
    assert same_value(3, [3], wrapped=True)
    assert same_value([3], [3], wrapped=True)
    assert not same_value(3, [3])


values = st.recursive(st.none() | st.booleans() | st.integers() | st.text(), st.lists, max_leaves=9)


@given(values)
def test_every_value_is_what_it_is(value: Any) -> None:
    assert same_value(value, value)


def test_nesting_without_end_is_wrong_not_an_error() -> None:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    assert not same_value(deep, deep)


@pytest.mark.parametrize(
    ("results", "cases", "fraction", "score", "timed_out"),
    [
        ([PASSED, PASSED], 2, False, 1.0, False),
        ([PASSED, WRONG], 3, False, 0.0, False),
        ([PASSED, TIMEOUT], 3, False, 0.0, True),
        ([WRONG, TIMEOUT, PASSED, PASSED], 4, True, 0.5, False),
        ([TIMEOUT, WRONG], 2, True, 0.0, True),
        ([WRONG, WRONG], 2, True, 0.0, False),
        ([PASSED], 2, False, 0.0, False),
    ],
)
def test_a_timeout_counts_as_one_where_it_decides(
    results: list[CaseResult], cases: int, fraction: bool, score: float, timed_out: bool
) -> None:
    if len(results) < cases and PASSED is results[-1]:
        results = [*results, WRONG]
    found = score_of(results, cases, fraction=fraction)
    assert (found.score, found.timed_out) == (score, timed_out)
    assert bool(found.message) == (score < 1)


results = st.lists(st.sampled_from(CaseResult), max_size=5)


@given(results, st.integers(0, 6), st.booleans())
def test_cases_without_a_result_have_not_passed(results: list[CaseResult], cases: int, fraction: bool) -> None:
    found = score_of(results, cases, fraction=fraction)
    assert (found.score == 1.0) == (len(results) >= max(cases, 1) and set(results) == {PASSED})
    assert found.score * max(cases, len(results), 1) <= results.count(PASSED) + 1e-9
    assert bool(found.message) == (found.score < 1.0)
