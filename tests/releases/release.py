"""The last release, from the repository's history."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import tarfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("crds", "operator", "runtime")


def extract_last_release(folder: Path, *paths: str) -> Path:
    """Writes the last release's files below these paths into a folder, and returns the folder.

    Skips the test where the history lacks the release's commit, as in a shallow clone.
    """
    release = json.loads((Path(__file__).parent / "last_release.json").read_text())
    command = ["git", "archive", release["commit"], *paths]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, check=False)
    if done.returncode != 0:
        pytest.skip(f"release {release['version']} is not in the history: {done.stderr.decode().strip()}")
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
        archive.extractall(folder, filter="data")
    return folder


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


def breaking_changes(old: Node, new: Node, path: str = "") -> Iterable[str]:
    """Yields each incompatible change: a field or enum value that is gone, a changed type, a newly required field.

    Skips what the new schema keeps as it is (`x-kubernetes-preserve-unknown-fields`).
    """
    if new.get("x-kubernetes-preserve-unknown-fields"):
        return
    if old.get("type") != new.get("type"):
        yield f"{path}: was {old.get('type')}, is {new.get('type')}"
    if "enum" in new:
        yield from (f"{path}: {word} is gone" for word in old.get("enum", ["any word"]) if word not in new["enum"])
    fields = new.get("properties") or {}
    for name, field in (old.get("properties") or {}).items():
        if name in fields:
            yield from breaking_changes(field, fields[name], f"{path}.{name}")
        else:
            yield f"{path}.{name} is gone"
    required = set(new.get("required") or ()) - set(old.get("required") or ())
    yield from (f"{path}.{name} is needed now" for name in sorted(required))
    if isinstance(old.get("items"), dict):
        yield from breaking_changes(old["items"], new.get("items") or {}, f"{path}[]")
