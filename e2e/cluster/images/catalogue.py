"""The images of the test cluster, each kept as an archive named by a hash of everything it is made from."""

import hashlib
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from e2e.cluster.errors import ClusterError
from e2e.cluster.images import base, builder
from e2e.cluster.paths import REPOSITORY, cache

KEPT = 3  # archives of an image, so that checkouts that take turns don't build each other's away
DISTRIBUTION = ("Dockerfile", "LICENSE", "README.md", "pyproject.toml", "constraints", "crds", "operator", "runtime")


@dataclass(frozen=True)
class Built:
    """An image as it came out: its name, which ends in the hash of all it depends on, and its Docker archive."""

    ref: str
    archive: Path


@dataclass(frozen=True)
class Image:
    """An image that is built here.

    `gather` copies everything the image depends on into an empty folder, so that what is hashed is what is built while
    somebody edits the sources; `make` builds it from that folder under a name in the builder's storage.
    """

    name: str
    gather: Callable[[Path], None]
    make: Callable[[str, Path, Path], None]

    def build(self) -> "Built":
        """Builds the image unless its archive exists; returns its name and archive."""
        cache().mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache()) as folder:
            self.gather(Path(folder))
            key = digest(Path(folder))
            built = Built(self._ref(key), cache() / "images" / f"{self.name}-{key}.tar")
            if not built.archive.exists():
                self.make(built.ref, Path(folder), built.archive.with_suffix(".log"))
                builder.export(built.ref, built.archive)
                self._prune()
        return built

    @property
    def nickname(self) -> str:
        """Name that `Cluster.load_image` gives the version it has loaded last."""
        return self._ref("dev")

    def _ref(self, tag: str) -> str:
        return f"localhost/longboat-{self.name}:{tag}"

    def _prune(self) -> None:
        archives = sorted(cache().glob(f"images/{self.name}-????????????.tar"), key=lambda file: file.stat().st_mtime)
        for archive in archives[:-KEPT]:
            builder.remove(self._ref(archive.stem.removeprefix(f"{self.name}-")))
            archive.with_suffix(".log").unlink(missing_ok=True)
            archive.unlink()


def digest(folder: Path) -> str:
    """Computes 12 hexadecimal digits of a hash of the paths and contents of all files in and below a folder."""
    digest = hashlib.sha256()
    for file in sorted(path for path in folder.rglob("*") if path.is_file()):
        digest.update(f"{file.relative_to(folder)}\0{file.stat().st_size}\0".encode() + file.read_bytes())
    return digest.hexdigest()[:12]


def _gather_runtime_host(folder: Path) -> None:
    shutil.copy(Path(__file__).with_name("runtime-host.Dockerfile"), folder / "Dockerfile")
    (folder / "base").write_text(_base())


def _gather_system(folder: Path) -> None:
    shutil.copy(REPOSITORY / "Dockerfile", folder)
    (folder / "base").write_text(_base())


def distribution(name: str, root: Path, target: str, **arguments: str) -> Image:
    """Describes an image of the Longboat in `root`: this checkout, or the files of a release."""
    return Image(name, partial(_gather_distribution, root), _make(target, **arguments))


def runtime_sources(name: str, root: Path) -> Image:
    """Describes an image like `runtime-host` in which the Longboat in `root` comes before that of the host's environment."""
    return Image(name, partial(_gather_runtime_sources, root), _make())


def _gather_distribution(root: Path, folder: Path) -> None:
    for path in (root / name for name in DISTRIBUTION):
        if path.is_dir():
            shutil.copytree(path, folder / path.name, ignore=shutil.ignore_patterns("__pycache__"))
        elif path.exists():  # early releases have no LICENSE
            shutil.copy(path, folder)
    (folder / "base").write_text(_base())


def _gather_runtime_sources(root: Path, folder: Path) -> None:
    shutil.copy(Path(__file__).with_name("runtime-sources.Dockerfile"), folder / "Dockerfile")
    for name in ("crds", "runtime"):
        shutil.copytree(root / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    built = find("runtime-host").build()
    builder.ensure(built.ref, built.archive)
    (folder / "base").write_text(built.ref)


def _base() -> str:
    built = BASE.build()
    builder.ensure(built.ref, built.archive)
    return built.ref


def _make(target: str = "", **arguments: str) -> Callable[[str, Path, Path], None]:
    """Returns a `make` that builds the folder's Dockerfile on the base named in its file `base`."""

    def make(ref: str, folder: Path, log: Path) -> None:
        base_image = (folder / "base").read_text()
        builder.build(ref, folder / "Dockerfile", folder, log, target, BASE_IMAGE=base_image, **arguments)

    return make


BASE = Image("base", base.gather, base.make)
IMAGES = {
    image.name: image
    for image in (
        BASE,
        Image("runtime-host", _gather_runtime_host, _make()),
        distribution("operator", REPOSITORY, "operator"),
        distribution("graders", REPOSITORY, "graders"),
        distribution("runtime", REPOSITORY, "runtime", BACKEND="cpu"),
        distribution("runtime-gpu", REPOSITORY, "runtime", BACKEND="gpu"),
        Image("runtime-gpu-system", _gather_system, _make("runtime-system", BACKEND="gpu")),
    )
}
DAILY = ("base", "runtime-host", "operator", "graders")
"""The images that most tests use; the `runtime` ones take gigabytes, and tests mount the host's environment instead.

`runtime-gpu-system` is the part of `runtime-gpu` without Longboat and its dependencies."""


def find(name: str) -> Image:
    """Finds our image with this name; raises ClusterError if there is none."""
    if name not in IMAGES:
        raise ClusterError(f"{name!r} is neither an archive nor one of our images: {', '.join(IMAGES)}")
    return IMAGES[name]
