"""Lints of this repository's own: what they find in which files, and the exit status."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

_ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Offence:
    """Names an expression that a lint rejects, and what to do instead."""

    path: Path
    line: int
    expression: str
    fix: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.expression}: {self.fix}"


def files(folders: Iterable[str], exempt: Iterable[str] = ()) -> list[Path]:
    """Lists the Python files below folders of the repository, but for what is exempt."""
    paths = [path.relative_to(_ROOT) for folder in folders for path in sorted((_ROOT / folder).rglob("*.py"))]
    return [path for path in paths if not any(path.is_relative_to(prefix) for prefix in exempt)]


def report(paths: Iterable[Path], offences: Callable[[Path, str], list[Offence]]) -> int:
    """Prints the offences in these files; returns the exit status."""
    rejected = [offence for path in paths for offence in offences(path, (_ROOT / path).read_text())]
    for offence in rejected:
        print(offence)
    return 1 if rejected else 0
