"""Rejects docstrings that open with a fragment and names that say nothing: `python -m tests.support.lint_english [PATH ...]`.

A docstring of a function opens with a verb: "Reads ...", or "Whether ..." if the function returns a bool. That of a property may open
with what the property is, and that of a test with what its name leaves unsaid. A variable is named by a noun for what it holds. Fields of
classes may have any name: some are keys of the API, of an event log or of a checkpoint.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.support.linting import Offence, files, report

_LINTED = ("crds", "operator", "runtime", "bench", "e2e", "tests/support")

# Openers of fragments, which neither name a thing nor say what is done.
_FRAGMENTS = (
    "what how of those which where why as from with in for by at on to when if since until after before without under "
    "such whose"
)
# Openers of noun phrases, right for what a thing is, and of sentences about something else than the function.
_SUBJECTS = (
    "the a an each every all any some both one no none nothing nobody whoever everything its their it they this that "
    "these there"
)
# Nouns that a noun phrase without an article opened with. None of them is also a verb.
_NOUNS = (
    "arguments attributes bytes children conditions cpu cpus engines field geometric ids incidents inches inodes inverse keys kind lengths "
    "log-probs markdown mean median memory metadata metrics millicores milliseconds number operations outcomes path paths pods process "
    "processes prompts random reason response responses seconds status statuses sum text token tokens weights"
)
_NAMES = "one of found told given known by these there held left seen asked said took kept theirs ours"

_DOCSTRING = "open the docstring with a verb"
_NAME = "name what it holds, by a noun"


def offences(path: Path, text: str) -> list[Offence]:
    """Lists the openers of docstrings and the names in a file that are refused."""
    tree = ast.parse(text)
    fields = {
        statement.target
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
        for statement in node.body
        if isinstance(statement, ast.AnnAssign)
    }
    return [
        Offence(path, node.lineno, expression, fix)
        for node in ast.walk(tree)
        if isinstance(node, ast.stmt | ast.expr | ast.arg) and node not in fields
        for expression, fix in _offences_at(node)
    ]


def _offences_at(node: ast.AST) -> Iterator[tuple[str, str]]:
    match node:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
            if (opener := _refused_opener(node)) is not None:
                yield f"{name}: {opener}", _DOCSTRING
        case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name):
            pass
        case _:
            return
    if name.lstrip("_") in _NAMES.split():
        yield name, _NAME


def _refused_opener(function: ast.FunctionDef | ast.AsyncFunctionDef) -> str | None:
    """Returns the first word of the function's docstring if it is refused."""
    opener, *_ = [word.strip(",.:;") for word in (ast.get_docstring(function) or "").split()] or [""]
    refused = _FRAGMENTS
    if not function.name.startswith("test_") and not any("property" in ast.unparse(d) for d in function.decorator_list):
        refused = f"{_FRAGMENTS} {_SUBJECTS} {_NOUNS}"
    returns_bool = function.returns is None or ast.unparse(function.returns) in ("bool", "bool | None", "'bool'")
    return opener if opener.lower() in refused.split() or (opener == "Whether" and not returns_bool) else None


def main(paths: list[Path]) -> int:
    """Prints the offences in these files, by default in all that are linted; returns the exit status."""
    return report(paths or files(_LINTED), offences)


if __name__ == "__main__":
    sys.exit(main([Path(argument) for argument in sys.argv[1:]]))
