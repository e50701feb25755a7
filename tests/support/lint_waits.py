"""Rejects tests that wait or measure by the clock: `python -m tests.support.lint_waits [PATH ...]`.

How fast a shared machine is, nobody knows. So a test waits for what it expects with `eventually`, and what needs a time is a benchmark.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_ROOT = Path(__file__).parents[2]

# What is linted, and what in it is a program that people run, for as long as they say, or waits for the others.
_LINTED = ("tests", "e2e")
_EXEMPT = ("e2e/chaos", "e2e/cluster", "e2e/demo", "tests/support/waiting.py", "tests/support/stress.py")

_HELPERS = "wait with `eventually` or `eventually_async` of tests/support/waiting.py"
_CURES = {
    "time.sleep": _HELPERS,
    "asyncio.timeout": "await without a deadline of its own; pytest's timeout ends a test that hangs",
    "asyncio.timeout_at": "await without a deadline of its own; pytest's timeout ends a test that hangs",
    "asyncio.wait_for": "await without a deadline of its own; pytest's timeout ends a test that hangs",
    **dict.fromkeys(
        ("time.monotonic", "time.monotonic_ns", "time.perf_counter", "time.perf_counter_ns", "time.process_time", "time.time"),
        "a test measures no time: hand the product a clock, or make it a benchmark",
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Offence:
    """A call in a test by which the speed of the machine may decide."""

    path: Path
    line: int
    call: str
    cure: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.call}: {self.cure}"


def offences(path: Path, text: str) -> list[Offence]:
    """Lists the calls in a file that wait for a constant time, set a deadline or read a clock."""
    tree = ast.parse(text)
    names = _imported(tree)
    return [
        Offence(path, node.lineno, call, cure)
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        for call, cure in _judged(node, names)
    ]


def _imported(tree: ast.Module) -> dict[str, str]:
    """Maps the names that a file uses to what they are imported from, e.g. `sleep` to `time.sleep`."""
    names: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.asname or alias.name: alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
    return names


def _judged(call: ast.Call, names: dict[str, str]) -> Iterator[tuple[str, str]]:
    head, _, rest = ast.unparse(call.func).partition(".")
    name = ".".join(filter(None, (names.get(head, head), rest)))
    if name in _CURES:
        yield name, _CURES[name]
    elif name == "asyncio.sleep" and not (
        call.args and isinstance(call.args[0], ast.Constant) and call.args[0].value == 0
    ):
        yield name, _HELPERS
    for keyword in call.keywords:
        if keyword.arg == "timeout" and isinstance(keyword.value, ast.Constant) and keyword.value.value is not None:
            yield f"{name}(timeout={keyword.value.value})", "pass DEADLINE_SECONDS, or no timeout"


def main(paths: list[Path]) -> int:
    """Prints the offences in these files, by default in all tests; returns the exit status."""
    if not paths:
        files = (path.relative_to(_ROOT) for folder in _LINTED for path in sorted((_ROOT / folder).rglob("*.py")))
        paths = [path for path in files if not path.as_posix().startswith(_EXEMPT)]
    all_offences = [offence for path in paths for offence in offences(path, (_ROOT / path).read_text())]
    for offence in all_offences:
        print(offence)
    return 1 if all_offences else 0


if __name__ == "__main__":
    sys.exit(main([Path(argument) for argument in sys.argv[1:]]))
