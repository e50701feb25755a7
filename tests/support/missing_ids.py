"""Lists tests of an earlier commit that are missing now: `python -m tests.support.missing_ids COMMIT`.

A test that was renamed or replaced has a line in `tests/replaced_ids.txt`, `OLD => NEW`, in which `*` stands for anything; NEW must exist, or
say after `gone:` why no test is needed. The tests of both commits are collected in this environment.
"""

from __future__ import annotations

import fnmatch
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

_ROOT = Path(__file__).parents[2]
REPLACED = _ROOT / "tests" / "replaced_ids.txt"
_PACKAGES = ("", "crds", "operator", "runtime")
_GONE = "gone:"


@dataclass(frozen=True)
class Replacement:
    """Maps a pattern of missing ids to a pattern of those that replace them, or to the reason why none does."""

    old: str
    new: str

    def covers(self, test: str) -> bool:
        return _matches(test, self.old)


def read_replacements(text: str) -> list[Replacement]:
    """Reads the lines of `tests/replaced_ids.txt`; raises ValueError for one that isn't `OLD => NEW`."""
    replacements = []
    for line in text.splitlines():
        if line.strip() and not line.startswith("#"):
            old, arrow, new = (part.strip() for part in line.partition("=>"))
            if not (old and arrow and new):
                raise ValueError(f"{REPLACED.name}: expected OLD => NEW; got {line!r}")
            replacements.append(Replacement(old, new))
    return replacements


def compare(before: Iterable[str], now: set[str], replacements: Sequence[Replacement]) -> tuple[list[str], list[str]]:
    """Lists what replaces each missing id, and the problems: ids without a replacement, and replacements without a test."""
    lines, problems = [], []
    for test in before:
        if test in now:
            continue
        replacement = next((each for each in replacements if each.covers(test)), None)
        if replacement is None:
            problems.append(f"missing, and nothing replaces it: {test}")
        else:
            lines.append(f"{test} => {replacement.new}")
    existing = {each.new for each in replacements if any(_matches(test, each.new) for test in now)}
    problems += [
        f"{REPLACED.name} names a test that doesn't exist: {each.new}"
        for each in replacements
        if each.new not in existing and not each.new.startswith(_GONE)
    ]
    return lines, problems


def collected(root: Path) -> list[str]:
    """Collects the ids of all tests of a checkout, with this environment's packages."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(str(root / package) for package in _PACKAGES)}
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "tests", "e2e"]
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(
            f"{root}: pytest could not collect the tests; fix the errors below\n{done.stdout[-3000:]}{done.stderr[-3000:]}"
        )
    return [line for line in done.stdout.splitlines() if "::" in line]


def main(commit: str) -> int:
    """Prints what replaces the missing tests, then the problems; returns the exit status."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "earlier"
        subprocess.run(["git", "worktree", "add", "--quiet", "--detach", root, commit], cwd=_ROOT, check=True)
        try:
            before = collected(root)
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", root], cwd=_ROOT, check=True)
    now = set(collected(_ROOT))
    lines, problems = compare(before, now, read_replacements(REPLACED.read_text()))
    print(*lines, *problems, f"{len(before)} tests at {commit}, {len(now)} now, {len(lines)} replaced", sep="\n")
    return 1 if problems else 0


def _matches(test: str, pattern: str) -> bool:
    """Returns whether an id matches a pattern in which only `*` is special; ids have brackets."""
    return re.fullmatch(fnmatch.translate(pattern.replace("[", "[[]")), test) is not None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
