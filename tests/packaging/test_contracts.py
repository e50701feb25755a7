"""Modules that mypy is told about in pyproject.toml exist: mypy itself passes over others. import-linter refuses them."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
OVERRIDES = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["mypy"]["overrides"]
SOURCES = {
    "longboat_crds": "crds",
    "longboat_graders": "runtime",
    "longboat_operator": "operator",
    "longboat_runtime": "runtime",
    "e2e": ".",
}


@pytest.mark.parametrize(
    "module", [name for override in OVERRIDES for name in override["module"] if name.split(".")[0] in SOURCES]
)
def test_every_module_named_exists(module: str) -> None:
    path = ROOT / SOURCES[module.split(".", maxsplit=1)[0]] / module.removesuffix(".*").replace(".", "/")
    assert path.is_dir() or (path.with_suffix(".py").is_file() and not module.endswith(".*"))
