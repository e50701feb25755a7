"""The base of all images but pause: a small Debian with Python, of this machine's own release."""

import tempfile
from pathlib import Path

from e2e.cluster.images import builder, mirror
from e2e.cluster.paths import cache
from e2e.cluster.shell import run

PACKAGES = ("ca-certificates", "python3", "python3-venv")
CLEAN = (
    *("var/cache/apt/archives/*.deb", "var/cache/apt/*.bin", "var/lib/apt/lists/*_*", "var/log/*.log"),
    *(f"usr/share/{folder}/*" for folder in ("doc", "info", "locale", "man", "zoneinfo/posix", "zoneinfo/right")),
)
"""Files that nothing needs: loading an image takes time for each file."""
DOCKERFILE = 'FROM scratch\nADD root.tar /\nCMD ["python3"]\n'


def gather(folder: Path) -> None:
    """Writes the Dockerfile, and the release, packages and clean-up that the image is made with."""
    (folder / "Dockerfile").write_text(DOCKERFILE)
    (folder / "recipe").write_text(f"{mirror.installed_from().release} {PACKAGES} {CLEAN}")


def make(ref: str, folder: Path, log: Path) -> None:
    """Installs a system with debootstrap and makes an image of it."""
    source = mirror.installed_from()
    with tempfile.TemporaryDirectory(dir=cache()) as scratch:
        root = Path(scratch) / "root"
        include = f"--include={','.join(PACKAGES)}"
        builder.logged(["debootstrap", "--variant=minbase", include, source.release, str(root), source.uri], log)
        run(["rm", "-rf", *(path for pattern in CLEAN for path in root.glob(pattern))])
        run(["tar", "--create", f"--file={folder}/root.tar", f"--directory={root}", "."])
    builder.build(ref, folder / "Dockerfile", folder, log.with_suffix(".buildah.log"))
