"""How code reads: docstrings open with a verb, and variables are nouns."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import lint_english

PLANTED = '''
class Pool:
    """What a pool is."""

    kept: int

    @property
    def size(self) -> int:
        """The number of pods."""

    @property
    def wait(self) -> float:
        """How long it waits."""

    def held(self) -> bool:
        """Whether it is full."""

    def load(self) -> float:
        """Whether it is full."""

def count(asked: int) -> int:
    """Returns what is asked for."""
    for one, pod in {}.items():
        left = [seen for seen in pod if pod.kept]

def fill() -> None:
    """The pool is full."""

def test_fill() -> None:
    """The pool is full: so is the other."""
    size = dict(one=1)

def _told() -> float:
    """Seconds that it took."""
'''
LINES = [
    (12, "wait: How"),
    (15, "held"),
    (18, "load: Whether"),
    (21, "asked"),
    (23, "one"),
    (24, "left"),
    (24, "seen"),
    (26, "fill: The"),
    (33, "_told"),
    (33, "_told: Seconds"),
]


def test_fragments_and_names_that_say_nothing_are_rejected() -> None:
    offences = lint_english.offences(Path("planted.py"), PLANTED)
    assert sorted((offence.line, offence.expression) for offence in offences) == LINES


def test_a_file_with_such_a_docstring_fails_the_lint(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "planted.py"
    file.write_text(PLANTED)
    assert lint_english.main([file]) == 1
    assert f"{file}:26: fill: The: open the docstring with a verb" in capsys.readouterr().out
