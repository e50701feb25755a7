"""Runs a file of tests with pytest in a case runner. The module that it imports is a program in another process."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, field
from types import ModuleType

import pytest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from longboat_graders.remote import Remote

# By what names test files import the program.
_MODULES = ("solution", "main")


@dataclass(slots=True)
class Report:
    """Says whether each test that was run passed, in their order. `cases` counts the first `most` of the file, less those skipped.

    `empty` says that pytest found no test in the file, and no error. A file whose import fails isn't that: in general its program
    lacks what it imports, or raises something then.
    """

    most: int
    cases: int = 0
    results: list[bool] = field(default_factory=list)
    empty: bool = False

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        del items[self.most :]
        self.cases = len(items)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed and report.when != "teardown":
            self.results.append(False)
        elif report.when == "call" and report.passed:
            self.results.append(True)
        elif report.skipped:
            self.cases -= 1


def run_file(directory: str, text: str, program: Remote, report: Report, stops: bool) -> None:
    """Runs the tests, up to the first that fails if it `stops`, and writes what came of them to `report`."""
    os.makedirs(directory, 0o700, exist_ok=True)
    path = f"{directory}/test_solution.py"
    with open(path, "w", encoding="utf-8", errors="replace") as file:
        file.write(text)
    for name in _MODULES:
        sys.modules[name] = _standing_for(name, program)
    sys.dont_write_bytecode = True
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    # What is set for other runs of pytest, in a pod or on the machine, changes no grade.
    for variable in ("PYTEST_ADDOPTS", "PYTEST_PLUGINS"):
        os.environ.pop(variable, None)
    options = [
        "-q",
        "--tb=no",
        "--capture=no",
        "--noconftest",
        "--import-mode=importlib",
        "-p",
        "no:cacheprovider",
        "-c",
        os.devnull,
    ]
    ended = pytest.main([*options, "--rootdir", directory, *(["-x"] if stops else []), path], plugins=[report])
    report.empty = ended == pytest.ExitCode.NO_TESTS_COLLECTED


def _standing_for(name: str, program: Remote) -> ModuleType:
    """Makes a module whose names are looked up in the program, `__all__` included.

    Other names that begin with `__` or `pytest` aren't: pytest would act on some where a test file imports all names.
    """
    module = ModuleType(name)

    def look_up(attribute: str) -> Any:
        if attribute.startswith(("__", "pytest")) and attribute != "__all__":
            raise AttributeError(attribute)
        return getattr(program, attribute)

    vars(module)["__getattr__"] = look_up
    return module
