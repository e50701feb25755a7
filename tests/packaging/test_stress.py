"""What `make stress` says of flaky tests, and which tests of an earlier commit are missing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.missing_ids import Replacement, compare, read_replacements
from tests.support.stress import Result, summary

ROOT = Path(__file__).parents[2]

# Fails in every second run.
SUITE = """
from pathlib import Path

class TestChance:
    def test_fails_now_and_then(self):
        ran = Path(__file__).with_name("ran")
        number = len(ran.read_text()) if ran.exists() else 0
        ran.write_text("x" * (number + 1))
        assert number % 2 == 0, "by chance"

def test_never_fails(): pass
"""


def test_the_summary_has_the_worst_test_first() -> None:
    results = [Result("a", 1.0, ""), Result("b", 1.0, "one"), Result("b", 1.0, "two"), Result("a", 1.0, "late")]
    assert summary(results).splitlines() == [
        "2 of 2 failed: b: one",
        "1 of 2 failed: a: late",
        "2 tests, 4 runs, 3 failures",
    ]


def test_a_test_that_chance_decides_is_found(tmp_path: Path) -> None:
    (tmp_path / "test_suite.py").write_text(SUITE)
    command = [
        sys.executable,
        "-m",
        "tests.support.stress",
        "2",
        "-c",
        "/dev/null",
        f"--rootdir={tmp_path}",
        str(tmp_path),
    ]
    environment = {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
    last = done.stdout.splitlines()[-2:]
    assert last[0].startswith(
        "1 of 2 failed: test_suite.py::TestChance::test_fails_now_and_then: AssertionError: by chance"
    )
    assert last[1] == "2 tests, 4 runs, 1 failures"
    (kept,) = (tmp_path / "build" / "stress").glob("*/summary.txt")
    assert last[0] in kept.read_text()


def test_a_missing_test_has_a_replacement_that_is_there() -> None:
    replacements = read_replacements("# why\na.py::test_b[*] => a.py::test_c\na.py::test_d => gone: nobody used it\n")
    lines, problems = compare(
        ["a.py::test_kept", "a.py::test_b[1]", "a.py::test_b[[2]]", "a.py::test_d", "a.py::test_lost"],
        {"a.py::test_kept", "a.py::test_c"},
        replacements,
    )
    assert lines == [
        "a.py::test_b[1] => a.py::test_c",
        "a.py::test_b[[2]] => a.py::test_c",
        "a.py::test_d => gone: nobody used it",
    ]
    assert problems == ["missing, and nothing replaces it: a.py::test_lost"]


def test_a_replacement_that_is_not_there_is_wrong() -> None:
    _, problems = compare([], {"a.py::test_b"}, [Replacement("a.py::test_a", "a.py::test_c")])
    assert problems == ["replaced_ids.txt names a test that doesn't exist: a.py::test_c"]


def test_a_line_that_says_nothing_is_an_error() -> None:
    with pytest.raises(ValueError, match="expected OLD => NEW"):
        read_replacements("a.py::test_b\n")
