"""The chart as Helm renders it."""

import json
import shutil
import subprocess
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from e2e.cluster.binaries import KUBEBOX
from longboat_crds.base import API_VERSION

CHART = Path(__file__).parents[2] / "charts" / "longboat"
RELEASE, NAMESPACE = "release", "longboat-system"


def helm(*arguments: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
    """Run Helm: the test cluster's, else the one on the path."""
    program = [str(KUBEBOX.path), "helm"] if KUBEBOX.path.exists() else [shutil.which("helm") or ""]
    if program == [""]:
        pytest.fail("Helm is missing: `make binaries` builds it")
    return subprocess.run([*program, *arguments], input=stdin, text=True, capture_output=True, check=False)


@dataclass(frozen=True)
class Rendered:
    """Objects of one rendering."""

    objects: list[dict[str, Any]]

    def of_kind(self, kind: str) -> list[dict[str, Any]]:
        """All objects of a kind."""
        return [body for body in self.objects if body["kind"] == kind]

    def one(self, kind: str, name: str | None = None) -> dict[str, Any]:
        """The only object of a kind, or of a kind and name."""
        [body] = [body for body in self.of_kind(kind) if name in (None, body["metadata"]["name"])]
        return body


def render(values: dict[str, Any] | None = None, release: str = RELEASE, known: tuple[str, ...] = ()) -> Rendered:
    """`helm template` with values, for an API server that serves the `known` kinds; fails the test with Helm's words."""
    done = _template(json.dumps(values or {}), release, known)
    assert done.returncode == 0, done.stderr
    return Rendered([body for body in yaml.load_all(done.stdout, yaml.CSafeLoader) if body])


def refusal(values: dict[str, Any]) -> str:
    """Why Helm refuses values."""
    done = _template(json.dumps(values), RELEASE, ())
    assert done.returncode != 0
    return done.stderr


@cache
def _template(values: str, release: str, known: tuple[str, ...]) -> subprocess.CompletedProcess[str]:
    served = [word for kind in known for word in ("--api-versions", f"{API_VERSION}/{kind}")]
    chart = ["template", release, str(CHART), "--namespace", NAMESPACE]
    return helm(*chart, *served, "--values", "-", stdin=values)
