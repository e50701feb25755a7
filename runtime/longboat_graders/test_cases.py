"""The test cases of a row, as public datasets of programming problems give them. Pure.

Sources of the formats: verl's `prime_code` (github.com/PRIME-RL/PRIME), APPS (arXiv:2105.09938) and TACO (arXiv:2312.14852),
LiveCodeBench (arXiv:2403.07974), HumanEval (arXiv:2107.03374).
"""

from __future__ import annotations

import base64
import binascii
import json
import pickletools
import sys
import zlib
from dataclasses import dataclass

from longboat_crds.reward_kinds import TestCaseFormat

TYPE_CHECKING = False  # `typing` itself would be in the memory of every grader
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

# Digits that a whole number in JSON may have: as in case runners (`graders.program.DIGITS`), more than Python's own limit.
_DIGITS = 50_000
# What a pickled text consists of (https://docs.python.org/3/library/pickletools.html).
_OPCODES_OF_TEXT = {"PROTO", "FRAME", "MEMOIZE", "BINPUT", "LONG_BINPUT", "PUT", "STOP"}
_TEXT_OPCODES = {"UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8"}
# Errors of `compile`: the last two are for text that is nested too deeply.
_UNCOMPILABLE = (SyntaxError, ValueError, OverflowError, MemoryError, RecursionError)


class CasesError(ValueError):
    """Says what is wrong with the test cases of a row, and the cure."""

    def __init__(self, problem: str, cure: str = "correct the row, or remove it") -> None:
        super().__init__(f"{problem}: {cure}")


@dataclass(frozen=True, slots=True)
class Printed:
    """A program that reads `stdin` from its standard input prints `expected`."""

    stdin: str
    expected: str


@dataclass(frozen=True, slots=True)
class Called:
    """`function`, of the program or of its class `Solution`, returns `expected` for `arguments`.

    With `wrapped`, `expected` is a list of one, and what is in it is right as well: datasets don't tell the two apart.
    """

    function: str
    arguments: tuple[Any, ...]
    expected: Any
    wrapped: bool = False


@dataclass(frozen=True, slots=True)
class CheckFunction:
    """`test` defines `check(candidate)`, which raises unless the program's `function` is right. `prompt` is the program's beginning."""

    function: str
    test: str
    prompt: str


@dataclass(frozen=True, slots=True)
class PytestFile:
    """A file of tests that imports the program as `solution`."""

    text: str


# What a program is run against: cases, of which each has a process of its own, or one program that tests.
Tests = tuple[Printed | Called, ...] | CheckFunction | PytestFile


def read_tests(form: TestCaseFormat, truth: Any, columns: Mapping[str, Any]) -> Tests:
    """Reads the tests of a row, never none: `truth` is its ground truth. Raises CasesError."""
    form, source = _recognise(form, truth, columns)
    if form is TestCaseFormat.APPS:
        return _paired(source, "its column `input_output`")
    if form is TestCaseFormat.PRIME_CODE:
        return _paired(source, "its columns" if source is columns else "its ground truth (dataset.columns.groundTruth)")
    if form is TestCaseFormat.LIVE_CODE_BENCH:
        return _live_code_bench(columns)
    if form is TestCaseFormat.HUMAN_EVAL:
        return CheckFunction(
            str(columns["entry_point"]), _text(columns, "test"), _code(str(columns.get("prompt") or ""))
        )
    return PytestFile(_text(columns, "test"))


def check_row(form: TestCaseFormat, truth: Any, columns: Mapping[str, Any], *, python: bool) -> None:
    """Raises CasesError for a row that can't be graded, as far as can be told without running its tests: those are parsed, or compiled.

    Without `python`, programs are run by a command, and only what they print can be compared.
    """
    tests = read_tests(form, truth, columns)
    called = isinstance(tests, CheckFunction | PytestFile) or any(isinstance(case, Called) for case in tests)
    if called and not python:
        raise CasesError(
            "its test cases call a Python function, but the reward has a runCommand", "leave that out for such rows"
        )
    if isinstance(tests, CheckFunction) and "check" not in _names(f"{tests.prompt}\n\n{tests.test}"):
        raise CasesError("its column `test` defines no function `check`")
    if isinstance(tests, PytestFile) and not any(map(_collected, _names(tests.text.encode(errors="replace")))):
        raise CasesError("its column `test` has no test that pytest finds")


def _collected(name: str) -> bool:
    """Whether pytest may collect what has this name, or is derived from it (unittest.TestCase)."""
    return name.startswith(("test", "Test"))


def _names(source: str | bytes) -> tuple[str, ...]:
    """Returns the names that tests define, import or use outside their functions and classes. Raises CasesError if they aren't Python."""
    try:
        return compile(source, "test", "exec", dont_inherit=True).co_names
    except _UNCOMPILABLE as error:
        version = ".".join(map(str, sys.version_info[:2]))
        raise CasesError(f"its column `test` is not Python {version} ({type(error).__name__}: {error})") from error


# --- The format of a row --------------------------------------------------------------------------------------------


def _recognise(form: TestCaseFormat, truth: Any, columns: Mapping[str, Any]) -> tuple[TestCaseFormat, Any]:
    """Finds the format, and the value by which it is recognised: for PrimeCode and Apps the one that holds the cases.

    For Auto it is the first format that fits. Raises CasesError if none does.
    """
    forms = _FINDERS if form is TestCaseFormat.AUTO else {form: _FINDERS[form]}
    for each, find in forms.items():
        source = find(truth, columns)
        if source is not None:
            return each, source
    has = f"It has the columns {', '.join(columns) or 'none'}" + ("" if truth is None else ", and a ground truth")
    if form is TestCaseFormat.AUTO:
        raise CasesError(
            f"it has no test cases in any format that is known ({'; '.join(_NEEDS.values())}). {has}",
            "name the column by dataset.columns.groundTruth, or set sandbox.format",
        )
    raise CasesError(
        f"it has no test cases of the format {form.value}, which are {_NEEDS[form]}. {has}",
        "set another format, or Auto",
    )


def _prime_code(truth: Any, columns: Mapping[str, Any]) -> Any:
    if isinstance(truth, str):
        return truth if truth.lstrip().startswith("{") and '"inputs"' in truth else None
    if _has(truth, "inputs", "outputs"):
        return truth
    return columns if _has(columns, "inputs", "outputs") else None


def _has(value: Any, *names: str) -> bool:
    return hasattr(value, "get") and all(value.get(name) is not None for name in names)


_FINDERS: Mapping[TestCaseFormat, Callable[[Any, Mapping[str, Any]], Any]] = {
    TestCaseFormat.PRIME_CODE: _prime_code,
    TestCaseFormat.APPS: lambda _, columns: columns.get("input_output"),
    TestCaseFormat.LIVE_CODE_BENCH: lambda _, columns: (
        columns.get("private_test_cases") or columns.get("public_test_cases")
    ),
    TestCaseFormat.HUMAN_EVAL: lambda _, columns: columns["test"] if _has(columns, "test", "entry_point") else None,
    TestCaseFormat.PYTEST: lambda _, columns: columns.get("test"),
}
_NEEDS = {
    TestCaseFormat.PRIME_CODE: "`inputs` and `outputs` in the ground truth",
    TestCaseFormat.APPS: "a column `input_output`",
    TestCaseFormat.LIVE_CODE_BENCH: "columns `public_test_cases` or `private_test_cases`",
    TestCaseFormat.HUMAN_EVAL: "columns `test` and `entry_point`",
    TestCaseFormat.PYTEST: "a column `test`",
}

# --- One reader per format ------------------------------------------------------------------------------------------


def _paired(source: Any, where: str) -> Tests:
    """Reads an object, or JSON of one: `inputs` and `outputs`, lists of one length, and `fn_name` where a function is called.

    Raises CasesError if it isn't that, or if there are no cases.
    """
    value = _object(source, where)
    inputs: Any = value.get("inputs")
    outputs: Any = value.get("outputs")
    if not _is_list(inputs) or not _is_list(outputs):
        raise CasesError(f"`inputs` and `outputs` in {where} must be lists")
    if len(inputs) != len(outputs):
        raise CasesError(
            f"there are {len(inputs)} inputs and {len(outputs)} outputs in {where}; there must be as many of both"
        )
    if not len(inputs):
        raise CasesError(f"the list of test cases in {where} is empty", "remove the row")
    name = value.get("fn_name")
    if not name:
        return tuple(
            Printed(_lines(case_input), _lines(expected)) for case_input, expected in zip(inputs, outputs, strict=True)
        )
    # APPS puts what is returned into a list of one; where all outputs are such lists, either may be meant.
    wrapped = all(isinstance(expected, list) and len(expected) == 1 for expected in outputs)
    return tuple(
        Called(str(name), _arguments(case_input), _parsed(expected) if isinstance(expected, str) else expected, wrapped)
        for case_input, expected in zip(inputs, outputs, strict=True)
    )


def _live_code_bench(columns: Mapping[str, Any]) -> Tests:
    named_cases: list[tuple[str, Any]] = []
    for name in ("public_test_cases", "private_test_cases"):
        value: Any = columns.get(name)
        if value is None or value == "":
            continue
        if isinstance(value, str):
            value = _json(value if value.lstrip().startswith("[") else _packed(value, name), f"its column `{name}`")
        if not _is_list(value):
            raise CasesError(f"its column `{name}` must be a list of cases")
        named_cases += [(name, case) for case in value]
    if not named_cases:
        raise CasesError(
            "the lists in its columns `public_test_cases` and `private_test_cases` are empty", "remove the row"
        )
    function: Any = _object(columns.get("metadata") or {}, "its column `metadata`").get("func_name")
    cases: list[Printed | Called] = []
    for name, case in named_cases:
        if not _has(case, "input", "output"):
            raise CasesError(f"a test case in its column `{name}` lacks `input` or `output`")
        case_input, expected = case["input"], case["output"]
        if case.get("testtype") != "functional":
            cases.append(Printed(_lines(case_input), _lines(expected)))
        elif not function:
            raise CasesError(f"test cases in its column `{name}` are functional, but `metadata` names no `func_name`")
        else:
            cases.append(
                Called(str(function), _arguments(case_input), _json(expected, f"`output` in its column `{name}`"))
            )
    return tuple(cases)


def _packed(text: str, name: str) -> str:
    """Unpacks base64 of what zlib made of a pickled text; raises CasesError for anything else.

    Nothing is unpickled: only a text is taken out of the pickle.
    """
    try:
        opcodes = list(pickletools.genops(zlib.decompress(base64.b64decode(text, validate=True))))
    except (binascii.Error, zlib.error, ValueError, IndexError) as error:
        raise CasesError(
            f"its column `{name}` is neither JSON nor base64 of a compressed, pickled text ({error})"
        ) from error
    texts = [argument for opcode, argument, _ in opcodes if opcode.name in _TEXT_OPCODES]
    others = {opcode.name for opcode, _, _ in opcodes} - _TEXT_OPCODES - _OPCODES_OF_TEXT
    if others or len(texts) != 1:
        raise CasesError(
            f"its column `{name}` holds a pickle of something else than one text; such pickles are not loaded"
        )
    return str(texts[0])


def _lines(value: Any) -> str:
    """Joins a list of lines into a text; a text stays as it is, anything else is turned into one."""
    if isinstance(value, str):
        return value
    return "\n".join(str(line) for line in value) if _is_list(value) else str(value)


def _arguments(value: Any) -> tuple[Any, ...]:
    """Reads the arguments of a call: a list, or a text with one in each line, as JSON or as it stands. Raises CasesError."""
    if isinstance(value, str):
        return tuple(_parsed(line) for line in value.split("\n") if line.strip())
    if not _is_list(value):
        raise CasesError("the input of a function must be a list of its arguments, or a text with one in each line")
    return tuple(value)


def _parsed(text: str) -> Any:
    """Reads a text as JSON; one that isn't JSON is meant as it stands."""
    try:
        return _loads(text)
    except (ValueError, RecursionError):
        return text


def _json(text: Any, where: str) -> Any:
    try:
        return _loads(text)
    except (TypeError, ValueError, RecursionError) as error:
        raise CasesError(f"{where} is not JSON ({error})") from error


def _loads(text: Any) -> Any:
    """Parses JSON. If it has a number too long for this process, but not for a case runner, whole numbers become floats.

    Their values don't matter here.
    """
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        raise
    except ValueError:
        return json.loads(text, parse_int=_long_number)


def _long_number(digits: str) -> float:
    if len(digits.lstrip("-")) > _DIGITS:
        raise ValueError(f"a number has more than {_DIGITS} digits")
    return float(digits)


def _object(value: Any, where: str) -> Mapping[str, Any]:
    parsed = _json(value, where) if isinstance(value, str) else value
    if not hasattr(parsed, "get"):
        raise CasesError(f"{where} must be an object, not a {type(parsed).__name__}")
    return parsed  # type: ignore[no-any-return]


def _is_list(value: Any) -> bool:
    return isinstance(value, (list, tuple))


def _text(columns: Mapping[str, Any], name: str) -> str:
    value = columns[name]
    if not isinstance(value, str) or not value.strip():
        raise CasesError(f"its column `{name}` holds no tests", "remove the row")
    return value


# --- The program ----------------------------------------------------------------------------------------------------


def program_of(response: str) -> str:
    """Finds the last fenced code block, its language aside; the whole response if it has none. One that is cut off counts up to the end."""
    parts = response.split("```")
    if len(parts) < 3:
        return response if len(parts) == 1 else _without_language(parts[1])
    # Odd parts stand within fences.
    last = len(parts) - 1 if len(parts) % 2 == 0 else len(parts) - 2
    return _without_language(parts[last])


def _without_language(block: str) -> str:
    first, newline, rest = block.partition("\n")
    return rest if newline and " " not in first.strip() and "=" not in first and "(" not in first else block


def completed(prompt: str, function: str, program: str) -> str:
    """Completes the program of a response to a prompt that is code: one that doesn't define the function goes on where the prompt ends.

    What a prompt defines besides (imports, helpers) is there for one that does.
    """
    whole = any(line.lstrip().startswith(f"def {function}") for line in program.splitlines())
    return f"{prompt}\n\n{program}" if whole else f"{prompt}{program}"


def _code(prompt: str) -> str:
    """Returns the prompt if it compiles as Python, else its last fenced block if that does, else an empty string."""
    for text in (prompt, program_of(prompt) if "```" in prompt else ""):
        try:
            compile(text, "prompt", "exec")
        except _UNCOMPILABLE:
            continue
        return text
    return ""
