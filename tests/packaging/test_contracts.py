"""The lists of modules in pyproject.toml name what there is, and hold every module that says of itself that it is pure."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
SOURCES = {"longboat_crds": "crds", "longboat_operator": "operator", "longboat_runtime": "runtime", "e2e": ""}
CONTRACT = next(
    contract
    for contract in PYPROJECT["tool"]["importlinter"]["contracts"]
    if contract["name"].startswith("Pure modules")
)
STRICT = next(
    override for override in PYPROJECT["tool"]["mypy"]["overrides"] if override.get("disallow_untyped_decorators")
)
OWN = re.compile(rf"({'|'.join(SOURCES)})\b")


def modules() -> dict[str, Path]:
    """The file of each module of ours, by its name."""
    found = {}
    for package, parent in SOURCES.items():
        for file in (ROOT / parent / package).rglob("*.py"):
            parts = file.relative_to(ROOT / parent).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = file
    return found


MODULES = modules()


def expression(pattern: str, *, deep: bool) -> re.Pattern[str]:
    """A name in which `*` stands for one part, `**` for any number; `deep`: `*` for any number, and `x.*` has x in it (mypy)."""
    if deep:
        return re.compile(re.escape(pattern).replace(r"\.\*", r"(\..*)?"))
    return re.compile(re.escape(pattern).replace(r"\*\*", r".+").replace(r"\*", r"[^.]+"))


def in_contract(module: str) -> bool:
    """import-linter takes what lies below a module that is named as part of it. A package is in it if all of its modules are."""
    parts = module.split(".")
    prefixes = [".".join(parts[:length]) for length in range(1, len(parts) + 1)]
    if MODULES[module].name == "__init__.py":
        prefixes.append(f"{module}.any")
    patterns = [expression(pattern, deep=False) for pattern in CONTRACT["source_modules"]]
    return any(pattern.fullmatch(prefix) for pattern in patterns for prefix in prefixes)


def is_strict(module: str) -> bool:
    return any(expression(pattern, deep=True).fullmatch(module) for pattern in STRICT["module"])


def named() -> list[tuple[str, bool]]:
    """All names and patterns of our own modules, and whether they are mypy's."""
    tools = PYPROJECT["tool"]
    contracts = [(name, False) for contract in tools["importlinter"]["contracts"] for name in names_in(contract)]
    types = [(name, True) for override in tools["mypy"]["overrides"] for name in override["module"]]
    return [(name, deep) for name, deep in (*contracts, *types) if OWN.match(name)]


def names_in(contract: dict[str, list[str]]) -> list[str]:
    ignored = [end.strip() for line in contract.get("ignore_imports", ()) for end in line.split("->")]
    keys = ("source_modules", "forbidden_modules", "modules", "layers")
    return [*ignored, *(name for key in keys for name in contract.get(key, ()))]


@pytest.mark.parametrize(("pattern", "deep"), named())
def test_every_module_named_exists(pattern: str, deep: bool) -> None:
    assert any(expression(pattern, deep=deep).fullmatch(module) for module in MODULES)


def test_every_module_that_says_that_it_is_pure_is_held_to_it() -> None:
    docs = {module: re.match(r'"""(.*?)"""', file.read_text(), re.DOTALL) for module, file in MODULES.items()}
    pure = {
        module
        for module, doc in docs.items()
        if doc and re.search(r"\bPure\.", doc[1]) and not module.startswith("e2e")
    }
    assert len(pure) > 50
    assert {module for module in pure if not in_contract(module)} == set()
    assert {module for module in pure if not is_strict(module)} == set()
