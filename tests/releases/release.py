"""The last release, from the repository's history."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import tarfile
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("crds", "operator", "runtime")


@dataclass(frozen=True)
class Release:
    """Its version, and the commit that it was made from."""

    version: str
    commit: str

    def archive(self, *paths: str) -> bytes:
        """The files below these paths, as a tar archive; skips the test where the history lacks the commit, as in a shallow clone."""
        done = subprocess.run(["git", "archive", self.commit, *paths], cwd=ROOT, capture_output=True, check=False)
        if done.returncode != 0:
            pytest.skip(
                f"release {self.version} is not in the history here: {done.stderr.decode().strip() or 'not a clone'}"
            )
        return done.stdout

    def extract(self, folder: Path, *paths: str) -> Path:
        """Writes the files below these paths into a folder."""
        with tarfile.open(fileobj=io.BytesIO(self.archive(*paths))) as archive:
            archive.extractall(folder, filter="data")
        return folder

    def text(self, path: str) -> str:
        """The text of one file."""
        with tarfile.open(fileobj=io.BytesIO(self.archive(path))) as archive:
            member = archive.extractfile(path)
            assert member is not None
            return member.read().decode()


@cache
def last_release() -> Release:
    """The release that this version is tested against."""
    return Release(**json.loads((Path(__file__).parent / "last_release.json").read_text()))


def ask(tree: Path, script: str, value: Any = None) -> Any:
    """What a Python script prints as JSON, run with the packages of a tree; it gets `value` as JSON on its standard input."""
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


def losses(old: Node, new: Node, path: str = "") -> Iterable[str]:
    """Yields what a value that fits the old schema may have and the new one lacks: fields, and words; and what it needs besides.

    What the new schema keeps as it is (`x-kubernetes-preserve-unknown-fields`) lacks nothing.
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
            yield from losses(field, fields[name], f"{path}.{name}")
        else:
            yield f"{path}.{name} is gone"
    required = set(new.get("required") or ()) - set(old.get("required") or ())
    yield from (f"{path}.{name} is needed now" for name in sorted(required))
    if isinstance(old.get("items"), dict):
        yield from losses(old["items"], new.get("items") or {}, f"{path}[]")
