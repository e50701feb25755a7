"""The Go programs of the test cluster: built once into the cache from sources here and pinned modules."""

import hashlib
import os
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from e2e.cluster.errors import ClusterError
from e2e.cluster.paths import cache

SOURCES = Path(__file__).parent
KUBERNETES = "1.36.3"
VERSION_PACKAGES = ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version")


@dataclass(frozen=True)
class Binary:
    """A program of a version; the cache keeps one file for each version and state of its sources."""

    name: str
    version: str

    @property
    def sources(self) -> Path:
        """The main package and its go.mod."""
        return SOURCES / self.name

    @cached_property
    def path(self) -> Path:
        """Path at which the program is, or will be once it is built."""
        digest = hashlib.sha256()
        for file in sorted(self.sources.iterdir()):
            digest.update(file.name.encode() + b"\0" + file.read_bytes())
        return cache() / "bin" / f"{self.name}-{self.version}-{digest.hexdigest()[:8]}" / self.name

    def require(self) -> Path:
        """Returns the program's path; raises ClusterError when it isn't built."""
        if not self.path.exists():
            raise ClusterError(f"{self.name} {self.version} is missing ({self.path}): run `make binaries`")
        return self.path

    def ensure(self) -> Path:
        """Builds the program unless it is there, and returns its path; the Go tool's messages go to standard error.

        Raises ClusterError without a Go toolchain, or if the build fails.
        """
        if self.path.exists():
            return self.path
        if shutil.which("go") is None:
            raise ClusterError("the Go toolchain is missing: install Go 1.26 or newer, then run `make binaries`")
        self.path.parent.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=self.path.parent.parent) as folder:
            built = Path(folder) / "out"
            env = {**os.environ, "CGO_ENABLED": "0"}
            done = subprocess.run(_build(built / self.name), cwd=self.sources, env=env, check=False)
            if done.returncode != 0:
                raise ClusterError(f"building {self.name} {self.version} failed; the messages above say why")
            built.rename(self.path.parent)
        return self.path


def _build(program: Path) -> list[str]:
    """Returns the command that builds the program; its version must be stamped, or the server reports v0.0.0-master."""
    major, minor, _ = KUBERNETES.split(".")
    stamp = {
        "gitVersion": f"v{KUBERNETES}",
        "gitMajor": major,
        "gitMinor": minor,
        "gitTreeState": "clean",
        "buildDate": "1970-01-01T00:00:00Z",
    }
    flags = [f"-X {package}.{key}={value}" for package in VERSION_PACKAGES for key, value in stamp.items()]
    return [
        "go",
        "build",
        "-trimpath",
        "-buildvcs=false",
        "-ldflags",
        " ".join(["-s", "-w", *flags]),
        "-o",
        str(program),
        ".",
    ]


KUBEBOX = Binary("kubebox", KUBERNETES)
PAUSE = Binary("pause", "1")
REGISTRY = Binary("registry", "3.1.2")
BINARIES = (PAUSE, KUBEBOX)
