"""Repository paths that pages name in backquotes."""

from __future__ import annotations

import re
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
# Pages shorten the paths of the packages.
ROOTS = tuple(REPOSITORY / root for root in ("runtime/longboat_runtime", "operator/longboat_operator", "."))


def exists(path: str) -> bool:
    """Returns whether the repository has the path, which may begin in a package."""
    roots: tuple[Path, ...] = ROOTS
    if path.startswith("crds/"):
        roots, path = (REPOSITORY / "crds/longboat_crds", REPOSITORY / "crds"), path.removeprefix("crds/")
    elif path.startswith("graders/"):
        roots, path = (REPOSITORY / "runtime/longboat_graders",), path.removeprefix("graders/")
    return any((root / path).exists() for root in roots)


def named_paths(text: str) -> list[str]:
    """Returns what looks like a path of the repository, but for what is built: it has a known suffix, or begins with a directory at the top."""
    paths = re.findall(r"`((?:[\w.-]+/)+[\w.-]*)`", text)
    suffixes = re.compile(r"\.(?:py|md|yaml|toml|txt|json|jsonl|svg|png)$")
    return [
        path
        for path in paths
        if not re.search(r"^build/|(?:^|/)[A-Z]+(?:/|\.py$)", path)
        and (suffixes.search(path) or (REPOSITORY / path.split("/")[0]).is_dir())
    ]
