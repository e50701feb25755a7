"""Images hold what their extra declares, and nothing of what a developer has besides."""

import ast
import re
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
# Distributions of modules that are installed only beside GPUs.
BESIDE_GPUS = {"pynvml": ["nvidia-ml-py"]}
OWN = {"longboat_crds", "longboat_graders", "longboat_operator", "longboat_runtime"}


def imported(folder: Path) -> set[str]:
    """Top-level names of all modules that the files below import, at any depth of their code."""
    names: set[str] = set()
    for file in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Import):
                names.update(alias.name.partition(".")[0] for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and not node.level:
                names.add((node.module or "").partition(".")[0])
    return names - OWN - sys.stdlib_module_names


def declared(*extras: str) -> set[str]:
    """Normalised names of the distributions that these extras bring by name."""
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    optional = project["optional-dependencies"]
    lines = [*project["dependencies"], *(line for extra in extras for line in optional[extra])]
    return {normal(re.split(r"[<>=!~\[; ]", line)[0]) for line in lines}


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


@pytest.mark.parametrize(
    ("folders", "extras"),
    [
        (("crds/longboat_crds", "operator/longboat_operator"), ("operator",)),
        (("crds/longboat_crds", "runtime/longboat_graders"), ("graders",)),
        (("crds/longboat_crds", "runtime/longboat_runtime"), ("runtime", "tracking", "cpu", "gpu")),
    ],
)
def test_what_is_imported_is_declared(folders: tuple[str, ...], extras: tuple[str, ...]) -> None:
    names = set.union(*(imported(REPOSITORY / folder) for folder in folders))
    assert names, "something is imported"
    distributions = BESIDE_GPUS | packages_distributions()
    known = declared(*extras) | {"pydantic-core"}  # a part of pydantic
    missing = {name for name in names if not {normal(each) for each in distributions.get(name, [])} & known}
    assert missing == set()
