"""What repeats bit for bit is promised on one page, and each promise there has a test."""

import ast
import re
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
PAGE = REPOSITORY / "docs" / "reproducibility.md"
PROMISE = re.compile(r"^\| \*\*(?P<promise>[^*]+)\*\*.*\| `(?P<file>tests/[^`:]+)::(?P<test>\w+)` \|$", re.MULTILINE)


def promises() -> list[pytest.ParameterSet]:
    rows = PROMISE.finditer(PAGE.read_text())
    return [pytest.param(row["file"], row["test"], id=row["promise"]) for row in rows]


def test_every_row_of_the_page_is_read() -> None:
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith("|")]
    assert len(promises()) == len(rows) - 2, "all but the head of the table"


@pytest.mark.parametrize(("file", "test"), promises())
def test_each_promise_has_its_test(file: str, test: str) -> None:
    functions = {
        node.name: node
        for node in ast.walk(ast.parse((REPOSITORY / file).read_text()))
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
    }
    assert test in functions
    marks = [ast.unparse(mark) for mark in functions[test].decorator_list]
    assert not [mark for mark in marks if "skip" in mark or "xfail" in mark]


def test_other_pages_point_to_it() -> None:
    pages = [REPOSITORY / "README.md", *(REPOSITORY / "docs").rglob("*.md")]
    said = [
        f"{page.name}: {line}"
        for page in pages
        if page != PAGE
        for line in page.read_text().splitlines()
        if re.search("bit[- ]for[- ]bit", line) and PAGE.name not in line
    ]
    assert not said
