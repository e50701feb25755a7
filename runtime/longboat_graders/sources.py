"""Identifies what a loaded reward function is made of: digests of files, and versions of installed distributions."""

from __future__ import annotations

import ast
import hashlib
import json
import os
import sys
from importlib.metadata import PackageNotFoundError, packages_distributions, version

from longboat_crds.reward_kinds import RewardKind

TYPE_CHECKING = False  # `typing` itself would be in the memory of every grader
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from types import ModuleType

    from longboat_graders.messages import RewardFunction
    from longboat_graders.watch import Origins

# The modules of the graders themselves, by package.
_OWN = ("__main__", "longboat_graders", "longboat_crds")
# More files than these have one digest together, so that the answer stays small.
_MOST_FILES = 100


def sources(function: RewardFunction, origins: Origins) -> dict[str, str]:
    """Returns digests (SHA-256) of the files that loading the function imported, and versions of distributions, by name.

    The files are those of the function's own package or file, and all that aren't installed; a module's name stands for its file, so that
    it doesn't matter where that is. The versions are those of the function's own package and of what files that aren't installed import.
    Not covered: what an installed package imports in turn, data that a function reads, and imports of files within a function, which
    happen in a grade. A reasoning-gym task is that package's version; a sandbox has nothing of its own.
    """
    if function.kind is RewardKind.SANDBOX:
        return {}
    if function.kind is RewardKind.REASONING_GYM:
        return _versions({"reasoning_gym"})
    package = (function.target or "").partition(":")[0].partition(".")[0]
    digests: dict[str, str] = {}
    packages = set() if package.startswith("/") else {package}
    for name, module, content in _files(package, origins):
        digests[name] = hashlib.sha256(content).hexdigest()
        if not origins.installed_module(module):
            packages |= imported_packages(content)
    packages -= {name.partition(".")[0] for name in digests} - {package}
    if len(digests) > _MOST_FILES:
        digests = {"files": hashlib.sha256(json.dumps(digests, sort_keys=True).encode()).hexdigest()}
    return digests | _versions(packages - {""})


def imported_packages(content: bytes) -> set[str]:
    """Finds the packages that a Python file imports by name, those of the standard library aside; none if it isn't Python text. Pure."""
    try:
        tree = ast.parse(content)
    except (SyntaxError, ValueError):
        return set()
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            names.add(node.module)
    return {name.partition(".")[0] for name in names} - sys.stdlib_module_names - {*_OWN}


def _files(package: str, origins: Origins) -> Iterator[tuple[str, ModuleType, bytes]]:
    """Yields name, module and content of each file, sorted by name."""
    for name, module in sorted(sys.modules.items()):
        file, top = getattr(module, "__file__", None), name.partition(".")[0]
        if not isinstance(file, str) or top in _OWN or (top != package and origins.installed_module(module)):
            continue
        try:
            with open(file, "rb") as opened:
                content = opened.read()
        except OSError:
            continue  # a module may name any file
        yield (os.path.basename(file) if name.startswith("longboat_reward_") else name), module, content


def _versions(packages: set[str]) -> dict[str, str]:
    """Returns the versions of the distributions that these packages belong to, as `version of NAME`; none for one of no distribution."""
    versions: dict[str, str] = {}
    distributions: Mapping[str, list[str]] | None = None
    for package in sorted(packages):
        try:
            versions[f"version of {package}"] = version(package)  # most distributions have the name of their package
        except PackageNotFoundError:
            distributions = packages_distributions() if distributions is None else distributions
            for name in sorted(set(distributions.get(package, ()))):
                versions[f"version of {name}"] = version(name)
    return versions
