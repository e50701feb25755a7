"""Rows as public datasets have them, and which test cases they hold."""

import base64
import json
import pickle
import zlib
from typing import Any

import pytest

from longboat_crds.problems import SpecProblem
from longboat_crds.reasons import Reason
from longboat_crds.reward_kinds import TestCaseFormat
from longboat_crds.rewards import RewardSpec
from longboat_graders import program
from longboat_graders.test_cases import (
    Called,
    CasesError,
    CheckFunction,
    Printed,
    PytestFile,
    completed,
    program_of,
    read_tests,
)
from longboat_runtime.reward.rows import row_check

AUTO = TestCaseFormat.AUTO
PRIME = {"inputs": ["1 2\n", "3 4\n"], "outputs": ["3\n", "7\n"]}
CALLED = {"inputs": [[1, 2], "[3]\n4"], "outputs": [[3], [7]], "fn_name": "add"}
PUBLIC = json.dumps([{"input": "1 2", "output": "3", "testtype": "stdin"}])
FUNCTIONAL = json.dumps([{"input": "[1, 2]\n3", "output": "[4, 5]", "testtype": "functional"}])
MIB = 2**20
LONG = json.dumps({"inputs": ["1 " * MIB], "outputs": ["2"]})
LONG_CALLED = json.dumps({"inputs": [["1" * MIB]], "outputs": [2], "fn_name": "f"})
PROMPT = 'from typing import List\n\ndef add(a, b):\n    """Adds."""\n'


def packed(value: object) -> str:
    return base64.b64encode(zlib.compress(pickle.dumps(value))).decode()


@pytest.mark.parametrize(
    ("truth", "columns", "expected"),
    [
        (json.dumps(PRIME), {}, (Printed("1 2\n", "3\n"), Printed("3 4\n", "7\n"))),
        (PRIME, {}, (Printed("1 2\n", "3\n"), Printed("3 4\n", "7\n"))),
        (None, {"input_output": json.dumps({"inputs": [["1", "2"]], "outputs": [["3"]]})}, (Printed("1\n2", "3"),)),
        (CALLED, {}, (Called("add", (1, 2), [3], True), Called("add", ([3], 4), [7], True))),
        (
            None,
            {"input_output": json.dumps({"inputs": [[5]], "outputs": [25], "fn_name": "square"})},
            (Called("square", (5,), 25),),
        ),
        (None, {"public_test_cases": PUBLIC, "private_test_cases": packed(PUBLIC)}, (Printed("1 2", "3"),) * 2),
        (
            "kept for others",
            {"private_test_cases": FUNCTIONAL, "metadata": '{"func_name": "f"}'},
            (Called("f", ([1, 2], 3), [4, 5]),),
        ),
        (
            None,
            {"prompt": PROMPT, "test": "def check(candidate): pass", "entry_point": "add"},
            CheckFunction("add", "def check(candidate): pass", PROMPT),
        ),
        (
            None,
            {"prompt": "(" * 1000, "test": "def check(candidate): pass", "entry_point": "add"},
            CheckFunction("add", "def check(candidate): pass", ""),
        ),
        (None, {"test": "from solution import add"}, PytestFile("from solution import add")),
    ],
)
def test_each_format_is_recognised(truth: Any, columns: dict[str, Any], expected: object) -> None:
    assert read_tests(AUTO, truth, columns) == expected


@pytest.mark.parametrize(
    ("form", "truth", "columns", "message"),
    [
        (AUTO, None, {"question": "?"}, "no test cases in any format"),
        (AUTO, "42", {}, "no test cases in any format"),
        (TestCaseFormat.APPS, PRIME, {"question": "?"}, "`input_output`"),
        (AUTO, {"inputs": [], "outputs": []}, {}, "empty"),
        (AUTO, {"inputs": ["1"], "outputs": []}, {}, "1 inputs and 0 outputs"),
        (AUTO, None, {"input_output": "{"}, "column `input_output` is not JSON"),
        (AUTO, None, {"input_output": "[1]"}, "column `input_output` must be an object"),
        (AUTO, None, {"public_test_cases": "[]"}, "empty"),
        (AUTO, None, {"private_test_cases": FUNCTIONAL}, "`func_name`"),
        (AUTO, None, {"private_test_cases": FUNCTIONAL, "metadata": ["f"]}, "column `metadata` must be an object"),
        (AUTO, None, {"private_test_cases": "!"}, "neither JSON nor base64"),
        (AUTO, None, {"test": " ", "entry_point": "f"}, "holds no tests"),
    ],
)
def test_a_row_without_test_cases_says_what_is_missing(
    form: TestCaseFormat, truth: Any, columns: dict[str, Any], message: str
) -> None:
    with pytest.raises(CasesError, match=message):
        read_tests(form, truth, columns)


class Evil:
    def __reduce__(self) -> tuple[Any, ...]:
        return pytest.fail, ("it was unpickled",)


@pytest.mark.parametrize("value", [Evil(), [PUBLIC], {"a": PUBLIC}, b"bytes", 7, (PUBLIC, PUBLIC)])
def test_nothing_but_a_text_is_taken_from_a_pickle(value: object) -> None:
    with pytest.raises(CasesError, match="something else than one text"):
        read_tests(AUTO, None, {"private_test_cases": packed(value)})


@pytest.mark.parametrize(
    ("response", "program"),
    [
        ("print(1)", "print(1)"),
        ("First:\n```python\nprint(1)\n```\nthen\n```python\nprint(2)\n```\nDone.", "print(2)\n"),
        ("```\nprint(1)\n```", "print(1)\n"),
        ("```c++\nint main() {}\n```", "int main() {}\n"),
        ("It is cut off:\n```python\nprint(1)", "print(1)"),
        ("```print(1)\n```", "print(1)\n"),
        ("", ""),
    ],
)
def test_the_last_fenced_block_is_the_program(response: str, program: str) -> None:
    assert program_of(response) == program


def test_a_program_goes_on_where_its_prompt_ends_or_stands_alone() -> None:
    assert completed(PROMPT, "add", "    return a + b\n") == PROMPT + "    return a + b\n"
    whole = "def add(a: List, b):\n    return a + b\n"
    assert completed(PROMPT, "add", whole) == f"{PROMPT}\n\n{whole}"


def reward(**sandbox: Any) -> RewardSpec:
    return RewardSpec.model_validate({"name": "code", "kind": "Sandbox", "domains": ["code"], "sandbox": sandbox})


@pytest.mark.parametrize(
    ("sandbox", "columns", "truth", "cure"),
    [
        ({}, {"question": "?"}, None, "name the column by dataset.columns.groundTruth, or set sandbox.format"),
        ({"format": "APPS"}, {"test": "def test(): pass"}, PRIME, "set another format, or Auto"),
        ({}, {}, {"inputs": [], "outputs": []}, "remove the row"),
        ({"runCommand": ["node"]}, {}, CALLED, "leave that out for such rows"),
        ({"runCommand": ["node"]}, {"test": "def test(): pass"}, None, "leave that out for such rows"),
        ({"runCommand": ["node"]}, {"input_output": LONG_CALLED}, None, "leave that out for such rows"),
        ({}, {"input_output": LONG[:-1]}, None, "column `input_output` is not JSON"),
        ({}, {"input_output": LONG[:-1]}, None, "correct the row, or remove it"),
        ({}, {"input_output": LONG.replace("outputs", "output")}, None, "must be lists"),
        ({}, {}, f'{{"inputs": ["{"1" * MIB}"], "outputs": []}}', "in its ground truth (dataset.columns.groundTruth)"),
        ({}, {"private_test_cases": packed(PUBLIC + " " * MIB + "]")}, None, "column `private_test_cases` is not JSON"),
        (
            {},
            {"input_output": f'{{"inputs": [[{"1" * 60_000}]], "outputs": [1], "fn_name": "f"}}'},
            None,
            "50000 digits",
        ),
        ({}, {"test": "def test_it(:\n    pass"}, None, "column `test` is not Python"),
        ({}, {"test": "import solution"}, None, "has no test that pytest finds"),
        ({}, {"prompt": PROMPT, "test": "def check(:", "entry_point": "add"}, None, "column `test` is not Python"),
        ({}, {"prompt": PROMPT, "test": "assert add(1, 1) == 2", "entry_point": "add"}, None, "no function `check`"),
    ],
)
def test_a_row_that_cannot_be_graded_fails_the_job_at_the_start(
    sandbox: dict[str, Any], columns: dict[str, Any], truth: Any, cure: str
) -> None:
    exact = RewardSpec(name="exact", function="m:f")
    check = row_check([exact, reward(**sandbox)])
    with pytest.raises(SpecProblem) as caught:
        check(columns, "code", truth, "row 3 of /data/train.jsonl")
    assert caught.value.reason == Reason.TEST_CASES_INVALID
    assert caught.value.field == "spec.rewards[1].sandbox.format"
    assert "Row 3 of /data/train.jsonl" in caught.value.message
    assert cure in caught.value.message
    check(columns, "math", truth, "row 3 of /data/train.jsonl")


@pytest.mark.parametrize(
    ("columns", "truth"),
    [
        ({}, PRIME),
        ({"private_test_cases": packed(PUBLIC), "public_test_cases": PUBLIC}, None),
        ({"input_output": LONG}, None),
        ({"input_output": f'{{"inputs": [[-{"1" * program.DIGITS}]], "outputs": [1], "fn_name": "f"}}'}, None),
        ({"prompt": PROMPT, "test": "def check(candidate): pass", "entry_point": "add"}, None),
        ({"test": "import unittest\nclass Adds(unittest.TestCase):\n    def test(self): pass"}, None),
        ({"test": "if True:\n    async def test_it(): '\udc80'"}, None),
    ],
)
def test_rows_that_a_judge_can_read_pass(columns: dict[str, Any], truth: Any) -> None:
    row_check([reward()])(columns, "code", truth, "row 0")
