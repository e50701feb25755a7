"""Shared libraries that extensions in an image need, by `ldd`."""

from __future__ import annotations

import fnmatch
import re
import subprocess
import sys
from collections.abc import Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from longboat_runtime.doctor.finding import Finding, ok, wrong

LIBRARIES = "libraries"
# NVIDIA's container toolkit mounts these.
_DRIVER_LIBRARIES = frozenset({"libcuda.so.1", "libnvidia-ml.so.1"})
# Plug-ins: they are loaded only where what they connect to is installed, and neither engines nor trainers load them.
_PLUGINS = {
    "torchcodec/libtorchcodec_*": "one for each version of FFmpeg, of which one has to be there; they decode video and sound",
    "nvidia/nvshmem/lib/nvshmem_bootstrap_*": "one for each launcher of NVSHMEM",
    "nvidia/nvshmem/lib/nvshmem_transport_*": "one for each network of NVSHMEM",
    "nvidia/*/lib/libcufile_rdma.so*": "GPUDirect Storage over RDMA",
    "numba/np/ufunc/tbbpool*": "threads of numba by TBB, beside its own",
}
_ABSENT = re.compile(r"^\s*(\S+) => not found")
_VERSION = re.compile(r"version `([^']+)' not found")


@dataclass(frozen=True, slots=True)
class Linked:
    """Lists the libraries that `ldd` doesn't find for `files` extensions, by their paths, and the names of those that packages bring.

    Python's own imports load the latter before an extension needs them.
    """

    files: int
    absent: Mapping[str, Collection[str]] = field(default_factory=dict)
    brought: Collection[str] = ()


def lacking(linked: Linked) -> dict[str, list[str]]:
    """Returns the libraries that extensions need and won't get, by the extensions' paths. Pure.

    A library may come from the driver or from another package, and a plug-in may lack what it connects to.
    """
    missing = {
        path: sorted(set(names) - _DRIVER_LIBRARIES - set(linked.brought))
        for path, names in sorted(linked.absent.items())
        if not any(fnmatch.fnmatch(f"/{path}", f"*/{pattern}") for pattern in _PLUGINS)
    }
    return {path: names for path, names in missing.items() if names}


def judge_libraries(linked: Linked) -> Finding:
    """Judges whether every extension finds what it needs. Pure."""
    missing = lacking(linked)
    if missing:
        text = "; ".join(f"{path} lacks {', '.join(names)}" for path, names in missing.items())
        cure = "install the Debian package, or the wheel, that brings it; for a version such as GLIBC_2.38, use a newer BASE_IMAGE"
        return wrong(LIBRARIES, text, cure)
    if not linked.files:
        return wrong(LIBRARIES, "there is no extension", "name the directory of installed packages")
    return ok(LIBRARIES, f"{linked.files} extensions find all they need, but for the driver's and those of plug-ins")


def absent(output: str) -> list[str]:
    """Returns the libraries, and versions of their symbols, that an output of `ldd` says aren't found. Pure."""
    matches = (_ABSENT.match(line) or _VERSION.search(line) for line in output.splitlines())
    return [match[1] for match in matches if match]


def linked(directory: Path) -> Linked:
    """Asks `ldd` about every extension below a directory, of this machine's architecture (a minute for thousands)."""
    files = [*_extensions(directory)]
    with ThreadPoolExecutor() as pool:
        outputs = [*pool.map(_ldd, files)]
    gaps = {str(path.relative_to(directory)): absent(output) for path, output in zip(files, outputs, strict=True)}
    names = {path.name for path in directory.rglob("*.so*")}
    return Linked(len(files), {path: names for path, names in gaps.items() if names}, names)


def _extensions(directory: Path) -> Iterator[Path]:
    own = _machine(Path(sys.executable))
    for path in sorted(directory.rglob("*.so*")):
        if path.is_file() and not path.is_symlink() and _machine(path) == own:
            yield path


def _machine(path: Path) -> bytes | None:
    """Returns the architecture in the header of an ELF file; None of another file."""
    with path.open("rb") as file:
        header = file.read(20)
    return header[18:] if header.startswith(b"\x7fELF") else None


def _ldd(path: Path) -> str:
    done = subprocess.run(["ldd", str(path)], capture_output=True, text=True, check=False)
    return done.stdout + done.stderr
