"""Checks the directories that this container writes: whether files can be written, synced and renamed there, and at what speed."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from longboat_runtime.checkpoint.files import fsync_directory
from longboat_runtime.doctor.finding import Finding, note, ok, size, wrong
from longboat_runtime.doctor.place import Place

# What a probe writes, and how long it may take before the storage counts as silent.
_BYTES = 32 * 2**20
_SECONDS = 60.0
# Below this share of its size a volume is nearly full.
_LITTLE = 0.05


@dataclass(frozen=True, slots=True)
class Directory:
    """A `path` and its `use`. `claim` says whether it is on a persistent claim."""

    path: Path
    use: str
    claim: bool = False


@dataclass(frozen=True, slots=True)
class Probe:
    """The outcome of a probe of a directory: the `step` that failed with an errno as `error`, or the `speed` of writes in bytes a second.

    `silent`: there was no answer in time. `size` and `free` are in bytes; `files` may still be made, None without a limit.
    """

    step: str | None = None
    error: int = 0
    silent: bool = False
    size: int = 0
    free: int = 0
    files: int | None = None
    speed: float | None = None


def directories(place: Place, current: Path, temporary: Path, home: Path) -> Iterator[Directory]:
    """Lists the directories of a place: in pods those of the operator, elsewhere that of `longboat run`. Pure."""
    if place.container is None:
        yield Directory(current, "runs of `longboat run` below the current directory")
    if place.container in {"driver", "trainer"}:
        yield Directory(Path("/checkpoint"), "checkpoints", claim=True)
    if place.container is not None:
        yield Directory(home, "caches of compilers")
    yield Directory(temporary, "temporary files")


def judge_directory(directory: Directory, probe: Probe) -> Finding:
    """Judges a directory by a probe of it. Pure."""
    check, what = f"volume {directory.path}", directory.use
    if probe.silent:
        cure = "see the node's kernel log and the pods of the storage's CSI driver: the storage doesn't respond"
        return wrong(check, f"for {what}: no answer in {_SECONDS:g} s", cure)
    if probe.step is not None:
        text = f"for {what}: {probe.step} fails: {os.strerror(probe.error)}"
        return wrong(check, text, _cure(directory, probe.error))
    speed = f", written at {probe.speed / 1e6:.0f} MB/s" if probe.speed else ""
    text = f"for {what}: {size(probe.free)} of {size(probe.size)} free{speed}"
    if probe.files == 0:
        return wrong(check, f"{text}, but no inode", "delete files there, or use storage with more inodes")
    if probe.free < _LITTLE * probe.size:
        return note(check, text, _cure(directory, errno.ENOSPC))
    return ok(check, text)


def _cure(directory: Directory, error: int) -> str:
    match error:
        case errno.ENOSPC | errno.EDQUOT if directory.claim:
            return "enlarge the claim (kubectl edit pvc, if its class allows it), or lower spec.checkpoint.keep"
        case errno.ENOSPC | errno.EDQUOT:
            return "free space there; in a pod it is the node's ephemeral storage, or the sizeLimit of the volume"
        case errno.EACCES | errno.EPERM if directory.claim:
            return "use a storage class that honours fsGroup (10001 by default), or make the volume's root writable by that group"
        case errno.EROFS:
            return "mount it writable: see the claim's access mode, and the node's kernel log for a file system that turned read-only"
        case errno.EACCES | errno.EPERM:
            return f"let user {os.getuid()} write there, or mount a volume"
        case errno.ENOENT:
            return "mount a volume there; the operator's pods have one"
        case errno.EINVAL | errno.ENOTSUP | errno.ENOSYS:
            return "use a file system that can sync directories and rename, such as ext4, xfs, NFS or CephFS: checkpoints depend on it"
        case _:
            return "see the node's kernel log and the pods of the storage's CSI driver"


def probed(directory: Directory, seconds: float = _SECONDS) -> Probe:
    """Writes, syncs, renames and removes a file there; the probe is silent after so many seconds."""
    probes: list[Probe] = []
    # A thread that waits for dead storage can't be ended.
    thread = threading.Thread(target=lambda: probes.append(_probe(directory.path)), daemon=True)
    thread.start()
    thread.join(seconds)
    return probes[0] if probes else Probe(silent=True)


def _probe(path: Path) -> Probe:
    step, folder = "making a directory", None
    try:
        folder = Path(tempfile.mkdtemp(prefix=".longboat-doctor-", dir=path))
        step = "writing and syncing a file"
        written, begun = os.urandom(1 << 20), time.monotonic()
        with (folder / "written").open("wb") as file:
            for _ in range(_BYTES >> 20):
                file.write(written)
            file.flush()
            os.fsync(file.fileno())
        speed = _BYTES / (time.monotonic() - begun)
        step = "renaming a file"
        (folder / "written").rename(folder / "renamed")
        step = "syncing a directory"
        fsync_directory(folder)
        step = "reading what was written"
        if (folder / "renamed").stat().st_size != _BYTES:
            return Probe(step, errno.EIO)
        return replace(_room(path), speed=speed)
    except OSError as error:
        return Probe(step, error.errno or errno.EIO)
    finally:
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)


def _room(path: Path) -> Probe:
    stat = os.statvfs(path)
    files = stat.f_favail if stat.f_files else None
    return Probe(size=stat.f_blocks * stat.f_frsize, free=stat.f_bavail * stat.f_frsize, files=files)
