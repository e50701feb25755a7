"""Which tests are slow, which are in quarantine, and which have passed in an earlier run."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.support.cpu_seconds import HIERARCHIES, Cost, measurable, seconds_alone
from tests.support.tiers import MOST_QUARANTINED, mark, quarantined

ENTRY = "tests/test_a.py::test_b[c d]\t2026-11-27\tassert 0.481 >= 0.5"


def test_an_entry_of_the_quarantine_has_a_test_a_date_and_a_message() -> None:
    assert quarantined(f"# why\n\n{ENTRY}\n") == ["tests/test_a.py::test_b[c d]"]


@pytest.mark.parametrize("line", ["tests/test_a.py::test_b", ENTRY.replace("-27", ""), f"{ENTRY}\tmore"])
def test_any_other_line_is_an_error_that_says_what_is_expected(line: str) -> None:
    with pytest.raises(pytest.UsageError, match=r"quarantine\.txt line 2: expected the test's id, a date"):
        quarantined(f"{ENTRY}\n{line}")


def test_the_quarantine_has_room_for_five() -> None:
    assert len(quarantined("\n".join([ENTRY] * MOST_QUARANTINED))) == 5
    with pytest.raises(pytest.UsageError, match="6 tests, 5 at most: fix one"):
        quarantined("\n".join([ENTRY] * 6))


def test_costly_tests_are_slow_and_those_in_quarantine_extended() -> None:
    marks: dict[str, list[str]] = {"cheap": [], "costly": [], "quarantined": []}
    items = [SimpleNamespace(nodeid=name, add_marker=given.append) for name, given in marks.items()]
    mark(cast("Any", items), {"costly": 0.6}, ["quarantined"])
    assert marks == {"cheap": [], "costly": ["slow"], "quarantined": ["extended"]}


def test_a_shared_fixture_counts_for_each_test_that_uses_it() -> None:
    """The second of three tests finds the engine that the first has started; the last ends what all have started."""
    costs = {
        "a.py::first": Cost(own=1.0, fixtures={"engine": 20.0}, ending=0.0),
        "a.py::second": Cost(own=2.0, fixtures={"engine": 20.0}, ending=0.0),
        "a.py::last": Cost(own=3.0, fixtures={}, ending=4.0),
        "b.py::other": Cost(own=5.0, fixtures={}, ending=0.0),
    }
    assert seconds_alone(costs) == {"a.py::first": 25.0, "a.py::second": 26.0, "a.py::last": 3.0, "b.py::other": 5.0}


SUITE = """
import pytest

@pytest.fixture(scope="module")
def costly():
    burn(0.6)

BURN = "import time\\nwhile time.process_time() < {}: pass"

def burn(seconds):
    # In an orphan that nobody waits for.
    import subprocess, sys
    orphaned = "import subprocess, sys; subprocess.Popen([sys.executable, '-c', sys.argv[1]])"
    # The pipe is closed when all have ended.
    subprocess.run([sys.executable, "-c", orphaned, BURN.format(seconds)], stdout=subprocess.PIPE, check=True)

def test_costly(costly): pass
def test_own(): burn(0.6)
def test_cheap(): pass
def test_fails(): assert FIXED
"""


def run(suite: Path, *options: str) -> str:
    """Runs pytest with the plugins alone, and returns what it prints."""
    plugins = [word for name in ("cpu_seconds", "journal") for word in ("-p", f"tests.support.{name}")]
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-c",
        "/dev/null",
        f"--rootdir={suite}",
        "-v",
        *plugins,
        *options,
        str(suite),
    ]
    alone = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_XDIST")}
    root = Path(__file__).parents[2]
    return subprocess.run(command, env=alone, cwd=root, capture_output=True, text=True, check=False).stdout


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    (tmp_path / "test_suite.py").write_text(f"FIXED = False\n{SUITE}")
    return tmp_path


def test_a_journal_leaves_out_what_has_passed(suite: Path, tmp_path: Path) -> None:
    journal = f"--journal={tmp_path / 'journal' / 'passed.txt'}"
    assert "3 passed" in (printed := run(suite, journal)), printed
    assert "1 failed" in printed
    (suite / "test_suite.py").write_text(f"FIXED = True\n{SUITE}")
    printed = run(suite, journal)
    assert re.findall(r"::(\w+) PASSED", printed) == ["test_fails"], printed
    assert "3 deselected" in printed


def test_tests_whose_shared_fixture_ends_badly_have_not_passed(suite: Path, tmp_path: Path) -> None:
    ends_badly = """
import pytest

@pytest.fixture(scope="module")
def watched():
    yield
    assert FIXED

def test_first(watched): pass
def test_second(watched): pass
"""
    journal = f"--journal={tmp_path / 'passed.txt'}"
    (suite / "test_suite.py").write_text(f"FIXED = False\n{ends_badly}")
    assert "2 passed, 1 error" in run(suite, journal)
    (suite / "test_suite.py").write_text(f"FIXED = True\n{ends_badly}")
    assert "2 passed" in run(suite, journal)
    assert "2 deselected" in run(suite, journal)


@pytest.mark.skipif(not any(map(measurable, HIERARCHIES)), reason="no writable control groups")
def test_what_tests_cost_is_recorded(suite: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs burn until their own CPU clocks say 0.6 s, so the kernel counts at least that on any machine."""
    record = tmp_path / "record.json"
    old = {"test_other.py::test_kept": 9.0}
    record.write_text(json.dumps(old | {"test_suite.py::test_cheap": 9.0}))
    printed = run(suite, f"--record-cpu-seconds={record}")
    seconds = json.loads(record.read_text())
    assert seconds.keys() == {*old, "test_suite.py::test_costly", "test_suite.py::test_own"}, printed
