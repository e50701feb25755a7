"""Rejects tests that wait or measure by the clock: `python -m tests.support.lint_waits [PATH ...]`.

Nobody knows how fast a shared machine is. So a test waits for what it expects with `eventually`, and whatever must be timed belongs in a
benchmark.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.support.linting import Offence, files, report

# Linted folders. Programs that people run for a time they choose are exempt, and so are the helpers that do the waiting.
_LINTED = ("tests", "e2e")
_EXEMPT = ("e2e/chaos", "e2e/cluster", "e2e/demo", "tests/support/waiting.py", "tests/support/stress.py")

_SLEEP = "wait with `eventually` or `eventually_async` of tests/support/waiting.py"
_DEADLINE = "remove the deadline; pytest's timeout ends a test that hangs"
_CLOCK = "tests measure no time: pass the code under test a clock, or write a benchmark"
_FIXES = {
    "time.sleep": _SLEEP,
    **dict.fromkeys(("asyncio.timeout", "asyncio.timeout_at", "asyncio.wait_for"), _DEADLINE),
    **dict.fromkeys(
        (
            f"time.{clock}{unit}"
            for clock in ("monotonic", "perf_counter", "process_time", "thread_time", "time")
            for unit in ("", "_ns")
        ),
        _CLOCK,
    ),
}

# Methods that take a time limit, and its position among their arguments.
_LIMITS = {"communicate": 1, "join": 0, "poll": 0, "result": 0, "select": 3, "wait": 0}


def offences(path: Path, text: str) -> list[Offence]:
    """Lists the expressions in a file that sleep, set a deadline or read a clock."""
    tree = ast.parse(text)
    names = _imported(tree)
    return [
        Offence(path, node.lineno, expression, fix)
        for node in ast.walk(tree)
        if isinstance(node, ast.expr)
        for expression, fix in _offences_at(node, names)
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


def _offences_at(node: ast.expr, names: dict[str, str]) -> Iterator[tuple[str, str]]:
    if isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Load):
        head, _, rest = ast.unparse(node).partition(".")
        name = ".".join(filter(None, (names.get(head, head), rest)))
        if head in names and name in _FIXES:
            yield name, _FIXES[name]
    elif isinstance(node, ast.Call):
        function = ast.unparse(node.func)
        zero = bool(node.args) and ast.unparse(node.args[0]) == "0"
        if names.get(function, function) == "asyncio.sleep" and not zero:
            yield "asyncio.sleep", _SLEEP
        limits = [keyword.value for keyword in node.keywords if keyword.arg == "timeout"]
        position = _LIMITS.get(function.rpartition(".")[2])
        if position is not None and isinstance(node.func, ast.Attribute):
            limits += node.args[position : position + 1]
        for limit in limits:
            if isinstance(limit, ast.Constant) and isinstance(limit.value, int | float):
                yield f"{function}({limit.value})", "pass DEADLINE_SECONDS, or no time limit"


def main(paths: list[Path]) -> int:
    """Prints the offences in these files, by default in all tests; returns the exit status."""
    return report(paths or [Path("conftest.py"), *files(_LINTED, _EXEMPT)], offences)


if __name__ == "__main__":
    sys.exit(main([Path(argument) for argument in sys.argv[1:]]))
