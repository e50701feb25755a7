"""Finds parts that are handed a method of the object that makes them: a part is handed values, or another part.

A reader of such a part has to open its owner to know what it does. `python -m tests.support.lint_owners` checks the driver and the rollout
fleet.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

CHECKED = ("runtime/longboat_runtime/driver", "runtime/longboat_runtime/rollout")


def handed_methods(tree: ast.Module) -> Iterator[tuple[int, str, str]]:
    """Yields line, class and method of each constructor call in a class that has a method of that class among its arguments.

    Also within a lambda or a partial call. A property is no method. Names of classes begin with a capital letter, as in `Loads(...)` or
    `module.Loads(...)`; threads aren't parts, so `threading.Thread` is left out.
    """
    for owner in (node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)):
        methods = {*_methods(owner)}
        for call in (node for node in ast.walk(owner) if isinstance(node, ast.Call)):
            if _name(call.func)[:1].isupper() and _name(call.func) != "Thread":
                arguments = [*call.args, *(keyword.value for keyword in call.keywords)]
                handed = {name for argument in arguments for name in _handed(argument)}
                yield from ((call.lineno, _name(call.func), name) for name in sorted(handed & methods))


def _methods(owner: ast.ClassDef) -> Iterator[str]:
    for node in owner.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            properties = {_name(decorator) for decorator in node.decorator_list} & {"property", "cached_property"}
            if not properties:
                yield node.name


def _handed(node: ast.AST, *, later: bool = False) -> Iterator[str]:
    """Yields attributes of `self` in an expression, but not methods whose results it has; `later`: it is the body of a lambda."""
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self":
        yield node.attr
        return
    later = later or isinstance(node, ast.Lambda)
    called = None if later or not isinstance(node, ast.Call) else node.func
    for child in ast.iter_child_nodes(node):
        if child is not called:
            yield from _handed(child, later=later)


def _name(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def main(directories: Sequence[str]) -> int:
    """Prints what is found below these directories; returns how much that is."""
    findings = 0
    for path in sorted(path for directory in directories for path in Path(directory).rglob("*.py")):
        for line, part, method in handed_methods(ast.parse(path.read_text())):
            findings += 1
            print(f"{path}:{line}: {part} is handed self.{method}: hand it values, or another part")
    return findings


if __name__ == "__main__":
    sys.exit(bool(main(sys.argv[1:] or CHECKED)))
