"""Building images with buildah: no daemon, no registry, storage in the cache."""

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from e2e.cluster.errors import ClusterError
from e2e.cluster.paths import cache
from e2e.cluster.shell import require, run

HOST_FILES = ("/etc/ssl/certs", "/etc/pip.conf", "/etc/uv")
"""What installing from inside a build needs of the host: trust, and its package index if it names one."""


def build(ref: str, dockerfile: Path, context: Path, log: Path, target: str = "", **arguments: str) -> None:
    """Build a target of a Dockerfile into the storage as `ref`; layers are kept, so only what changed runs.

    Raises ClusterError when the build fails.
    """
    argv = ["bud", *options(), f"--file={dockerfile}"]
    argv += [f"--target={target}"] if target else []
    argv += [f"--build-arg={name}={value}" for name, value in arguments.items()]
    logged([*_buildah(), *argv, f"--tag={ref}", str(context)], log)


def options() -> list[str]:
    """Returns what any build needs on this machine, whose images come from no registry."""
    volumes = [f"--volume={path}:{path}:ro" for path in HOST_FILES if Path(path).exists()]
    return ["--layers", "--isolation=chroot", "--network=host", "--pull=never", *volumes]


def variables(folder: Path, registry: str) -> dict[str, str]:
    """Returns variables by which buildah uses this storage and pushes to a registry without TLS; their files are in `folder`."""
    files = {
        "STORAGE": f'[storage]\ndriver = "overlay"\ngraphroot = "{_storage()}/root"\nrunroot = "{_storage()}/run"\n',
        "REGISTRIES": f'[[registry]]\nlocation = "{registry}"\ninsecure = true\n',
    }
    for name, text in files.items():
        (folder / f"{name.lower()}.conf").write_text(text)
    made = {f"CONTAINERS_{name}_CONF": str(folder / f"{name.lower()}.conf") for name in files}
    return {**made, "TMPDIR": _temporary()}


def export(ref: str, archive: Path, name: str = "") -> None:
    """Writes a Docker archive of an image, in which it is called `name` (default: `ref`)."""
    part = archive.with_suffix(".part")
    part.unlink(missing_ok=True)
    run([*_buildah(), "push", ref, f"docker-archive:{part}:{name or ref}"], env=_environment())
    part.rename(archive)


def ensure(ref: str, archive: Path) -> None:
    """Bring an image back into the storage from its archive unless it is there."""
    inspect = [*_buildah(), "inspect", "--type=image", ref]
    if subprocess.run(inspect, env=_environment(), capture_output=True, check=False).returncode != 0:
        run([*_buildah(), "pull", "--quiet", f"docker-archive:{archive}"], env=_environment())


@contextmanager
def unpacked(ref: str) -> Iterator[tuple[Path, dict[str, str]]]:
    """Mounts an image of the storage for the block; yields the folder of its files, and the environment that it sets."""
    image = json.loads(run([*_buildah(), "inspect", "--type=image", ref], env=_environment()))
    variables = image["OCIv1"]["config"]["Env"]
    container = run([*_buildah(), "from", "--pull=never", ref], env=_environment()).strip()
    try:
        root = run([*_buildah(), "mount", container], env=_environment()).strip()
        yield Path(root), dict(variable.split("=", 1) for variable in variables)
    finally:
        run([*_buildah(), "rm", container], env=_environment())


def remove(ref: str) -> None:
    """Take an image's name, and the layers that nothing else has, out of the storage."""
    run([*_buildah(), "rmi", "--force", ref], env=_environment())


def logged(argv: list[str], log: Path) -> None:
    """Run a long command with its output in a log; raises ClusterError with the log's end when it fails."""
    require(argv[0])
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("w") as output:
        done = subprocess.run(argv, env=_environment(), stdout=output, stderr=output, check=False)
    if done.returncode != 0:
        tail = "\n  ".join(log.read_text(errors="replace").splitlines()[-20:])
        raise ClusterError(f"`{argv[0]}` failed; the end of {log}:\n  {tail}")


def _environment() -> dict[str, str]:
    return {**os.environ, "TMPDIR": _temporary()}


def _temporary() -> str:
    """Returns the folder for cache mounts and intermediate files, which are otherwise below /var/tmp."""
    folder = _storage() / "tmp"
    folder.mkdir(parents=True, exist_ok=True)
    return str(folder)


def _buildah() -> list[str]:
    return ["buildah", f"--root={_storage()}/root", f"--runroot={_storage()}/run"]


def _storage() -> Path:
    return cache() / "buildah"
