"""The releases, from the repository's history."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import tarfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("crds", "operator", "runtime")


@dataclass(frozen=True)
class Release:
    """One release. A later version can be rolled back to it if it reads what later versions write (`rollback`)."""

    version: str
    commit: str
    rollback: bool

    def extract(self, folder: Path) -> Path:
        """Writes its files into a folder, and returns the folder.

        Skips the test where the history lacks the release's commit, as in a shallow clone.
        """
        done = subprocess.run(["git", "archive", self.commit], cwd=ROOT, capture_output=True, check=False)
        if done.returncode != 0:
            pytest.skip(f"release {self.version} is not in the history: {done.stderr.decode().strip()}")
        with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
            archive.extractall(folder, filter="data")
        return folder


RELEASES = [Release(**fields) for fields in json.loads((Path(__file__).parent / "releases.json").read_text())]
"""All releases, oldest first."""


def run_script(tree: Path, script: str, value: Any = None) -> Any:
    """Runs a Python script with a tree's packages and `value` as JSON on standard input; returns the JSON that it prints."""
    path = os.pathsep.join(str(tree / package) for package in (*PACKAGES, "."))
    done = subprocess.run(
        [sys.executable, "-c", script],
        input=json.dumps(value),
        env={**os.environ, "PYTHONPATH": path},
        cwd=tree,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


Node = dict[str, Any]


def filled_in(old: Node, new: Node, path: str = "") -> Iterable[str]:
    """Yields each field that the new schema's API server adds to stored objects of the old one."""
    fields = old.get("properties") or {}
    for name, field in (new.get("properties") or {}).items():
        if name in fields:
            yield from filled_in(fields[name], field, f"{path}.{name}")
        elif fields and "default" in field:
            yield f"{path}.{name}"
    if isinstance(new.get("default"), dict):
        yield from (f"{path}.{name}" for name in new["default"] if fields and name not in fields)
    if isinstance(old.get("items"), dict):
        yield from filled_in(old["items"], new.get("items") or {}, f"{path}[]")


def breaking_changes(old: Node, new: Node, path: str = "") -> Iterable[str]:
    """Yields each incompatible change: a field or enum value that is gone, a changed type, a newly required field.

    Skips what the new schema keeps as it is (`x-kubernetes-preserve-unknown-fields`, `x-kubernetes-int-or-string`).
    """
    if new.get("x-kubernetes-preserve-unknown-fields"):
        return
    if old.get("type") != new.get("type"):
        yield f"{path}: was {old.get('type')}, is {new.get('type')}"
    if "enum" in new:
        yield from (f"{path}: {word} is gone" for word in old.get("enum", ["any word"]) if word not in new["enum"])
    fields = new.get("properties") or {}
    others = new.get("additionalProperties") or {}
    for name, field in (old.get("properties") or {}).items():
        if name in fields:
            yield from breaking_changes(field, fields[name], f"{path}.{name}")
        elif not (others.get("x-kubernetes-int-or-string") and field.get("type") in ("integer", "string")):
            yield f"{path}.{name} is gone"
    required = set(new.get("required") or ()) - set(old.get("required") or ())
    yield from (f"{path}.{name} is needed now" for name in sorted(required))
    if isinstance(old.get("items"), dict):
        yield from breaking_changes(old["items"], new.get("items") or {}, f"{path}[]")
