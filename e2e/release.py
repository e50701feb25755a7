"""Makes a release: writes the version and the changelog, then builds what is to be published, and uploads nothing."""

import argparse
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from e2e.cluster.errors import ClusterError
from e2e.cluster.images import builder, catalogue
from e2e.cluster.paths import REPOSITORY
from e2e.cluster.shell import run
from e2e.installation import CHART, helm

# The distribution's version, those of the chart, and tags of images.
VERSION = re.compile(r'(?m)(^version = "|^version: |^appVersion: |longboat[-a-z]*:)(\d+\.\d+\.\d+)\b')


def files(root: Path) -> Iterator[Path]:
    """Yields the files in which the version may be written."""
    yield from (root / "pyproject.toml", root / "README.md")
    for pattern in ("charts/**/*.yaml", "examples/**/*.yaml", "docs/**/*.md"):
        yield from root.glob(pattern)


def write(root: Path, version: str) -> None:
    """Writes the version everywhere, and moves the fragments of the changelog into it."""
    for file in files(root):
        file.write_text(VERSION.sub(rf"\g<1>{version}", file.read_text()))
    if any(root.glob("changes/+*")):
        module(root, "towncrier", "build", "--yes", "--version", version)


def module(root: Path, name: str, *arguments: str) -> None:
    """Runs a Python module in a folder; raises ClusterError with its output when it fails."""
    done = subprocess.run(
        [sys.executable, "-m", name, *arguments], cwd=root, text=True, capture_output=True, check=False
    )
    if done.returncode != 0:
        raise ClusterError(f"{name} failed: {(done.stderr or done.stdout).strip()}")


def build(version: str, images: tuple[str, ...]) -> list[Path]:
    """Builds the distributions, the chart and images; returns their files."""
    folder = REPOSITORY / "build" / "release" / version
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    module(REPOSITORY, "hatchling", "build", "--directory", str(folder))
    helm(Path(os.devnull), "package", str(CHART), "--destination", str(folder))
    for name in images:
        built = catalogue.find(name).build()
        builder.ensure(built.ref, built.archive)
        builder.export(built.ref, folder / f"longboat-{name}-{version}.tar", f"longboat-{name}:{version}")
    return sorted(folder.iterdir())


def main() -> int:
    """Runs the command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="make release", description=__doc__)
    parser.add_argument("version", metavar="VERSION", help="such as 0.2.0")
    parser.add_argument("--images", action="store_true", help="build the runtime's images too")
    options = parser.parse_args()
    if not re.fullmatch(r"(0|[1-9]\d*)(\.(0|[1-9]\d*)){2}", options.version):
        parser.error(f"{options.version!r} isn't a version: pass VERSION=x.y.z")
    try:
        if run(["git", "-C", REPOSITORY, "status", "--porcelain"]):
            raise ClusterError("the checkout has changes: commit or revert them")
        try:
            write(REPOSITORY, options.version)
            made = build(
                options.version, ("operator", "graders", *(("runtime", "runtime-gpu") if options.images else ()))
            )
        except ClusterError as error:
            run(["git", "-C", REPOSITORY, "reset", "--hard"])
            raise ClusterError(f"{error}; the version and the changelog are as before") from error
    except ClusterError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print("Commit the version and the changelog, tag that commit, and publish:")
    for file in made:
        print(f"  {file.relative_to(REPOSITORY)} ({file.stat().st_size / 1e6:.1f} MB)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
