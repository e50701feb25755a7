"""The Go programs of the test cluster: built once into the cache from pinned modules."""

import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from e2e.cluster.errors import ClusterError
from e2e.cluster.paths import cache

HERE = Path(__file__).parent
KUBERNETES = "1.36.3"
VERSION_PACKAGES = ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version")


@dataclass(frozen=True)
class Binary:
    """A program of a version; the cache keeps one file for each version and state of `sources`."""

    name: str
    version: str
    build: Callable[["Binary", Path], list[str]]
    sources: Path | None = None

    @cached_property
    def path(self) -> Path:
        """Where the program is, or will be."""
        digest = hashlib.sha256()
        for file in sorted(self.sources.iterdir()) if self.sources else []:
            digest.update(file.name.encode() + b"\0" + file.read_bytes())
        suffix = f"-{digest.hexdigest()[:8]}" if self.sources else ""
        return cache() / "bin" / f"{self.name}-{self.version}{suffix}" / self.name

    def require(self) -> Path:
        """The program's path; raises ClusterError when it isn't built."""
        if not self.path.exists():
            raise ClusterError(f"{self.name} {self.version} is missing ({self.path}): run `make binaries`")
        return self.path

    def ensure(self) -> Path:
        """Build the program unless it is there; the Go tool's messages go to standard error."""
        if self.path.exists():
            return self.path
        if shutil.which("go") is None:
            raise ClusterError("the Go toolchain is missing: install Go 1.26 or newer, then run `make binaries`")
        self.path.parent.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=self.path.parent.parent) as folder:
            built = Path(folder) / "out"
            env = {**os.environ, "CGO_ENABLED": "0", "GOBIN": str(built), "GOFLAGS": "-buildvcs=false"}
            done = subprocess.run(self.build(self, built), cwd=self.sources, env=env, check=False)
            if done.returncode != 0:
                raise ClusterError(f"building {self.name} {self.version} failed; the messages above say why")
            built.rename(self.path.parent)
        return self.path


def _from_sources(binary: Binary, out: Path) -> list[str]:
    """Build the sources; the version must be stamped, or the server reports v0.0.0-master."""
    major, minor, _ = KUBERNETES.split(".")
    stamp = {
        "gitVersion": f"v{KUBERNETES}",
        "gitMajor": major,
        "gitMinor": minor,
        "gitTreeState": "clean",
        "buildDate": "1970-01-01T00:00:00Z",
    }
    flags = [f"-X {package}.{key}={value}" for package in VERSION_PACKAGES for key, value in stamp.items()]
    return ["go", "build", "-trimpath", "-ldflags", " ".join(["-s", "-w", *flags]), "-o", str(out / binary.name), "."]


def _install(module: str) -> Callable[[Binary, Path], list[str]]:
    def argv(binary: Binary, _: Path) -> list[str]:
        return ["go", "install", "-trimpath", "-ldflags", "-s -w", f"{module}@v{binary.version}"]

    return argv


KUBEBOX = Binary("kubebox", KUBERNETES, _from_sources, HERE / "kubebox")
COREDNS = Binary("coredns", "1.15.0", _install("github.com/coredns/coredns"))
HELM = Binary("helm", "4.2.4", _install("helm.sh/helm/v4/cmd/helm"))
PAUSE = Binary("pause", "1", _from_sources, HERE / "pause")
BINARIES = (PAUSE, KUBEBOX, COREDNS, HELM)
