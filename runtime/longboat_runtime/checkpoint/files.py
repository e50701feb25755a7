"""Files that survive a crash, and their contents."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import xxhash

from longboat_runtime.checkpoint.manifest import NAME, FileEntry

_CHUNK = 1 << 24
# Reading is bound by the volume, and hashing releases the interpreter's lock.
_READERS = 4


class FilesDamaged(Exception):
    """Files of a checkpoint are missing or not as they were written."""


def fsync_directory(path: Path) -> None:
    """Makes the names in a directory durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_durably(path: Path, content: bytes) -> None:
    """Writes a file whole or not at all, and makes it durable: aside, synced, renamed into place, the directory synced."""
    aside = path.with_name(f".{path.name}.partial")
    with aside.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    aside.rename(path)
    fsync_directory(path.parent)


def make_directory(path: Path) -> None:
    """Makes a directory and what is missing above it, durably."""
    if path.is_dir():
        return
    make_directory(path.parent)
    path.mkdir(exist_ok=True)
    fsync_directory(path.parent)


def fsync_tree(root: Path) -> None:
    """Makes all files and names below `root` durable, whoever wrote them."""
    for directory, _, names in os.walk(root, topdown=False):
        for name in names:
            descriptor = os.open(Path(directory) / name, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        fsync_directory(Path(directory))


def remove_tree(root: Path) -> None:
    """Removes a checkpoint, its manifest durably first: what a crash leaves of it never looks complete."""
    if not root.exists():
        return
    (root / NAME).unlink(missing_ok=True)
    fsync_directory(root)
    shutil.rmtree(root)


def describe(root: Path) -> tuple[FileEntry, ...]:
    """Describes all files below `root`, sorted by path."""
    paths = sorted(_files(root))
    with ThreadPoolExecutor(_READERS) as readers:
        sums = list(readers.map(checksum, [root / path for path in paths]))
    return tuple(
        FileEntry(path=path, size=(root / path).stat().st_size, checksum=total)
        for path, total in zip(paths, sums, strict=True)
    )


def verify(root: Path, entries: tuple[FileEntry, ...]) -> None:
    """Raises FilesDamaged unless every file of `entries` is there with its size and content, or OSError if one can't be read."""
    for entry in entries:
        path = root / entry.path
        if not path.is_file():
            raise FilesDamaged(f"{entry.path} is missing")
        if path.stat().st_size != entry.size:
            raise FilesDamaged(f"{entry.path} has {path.stat().st_size} bytes, not {entry.size}")
    with ThreadPoolExecutor(_READERS) as readers:
        sums = readers.map(checksum, [root / entry.path for entry in entries])
        for entry, total in zip(entries, sums, strict=True):
            if total != entry.checksum:
                raise FilesDamaged(f"{entry.path} is not as it was written")


def checksum(path: Path) -> str:
    """Computes the XXH3 (128 bits) of a file's content, in hexadecimal digits."""
    total = xxhash.xxh3_128()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            total.update(chunk)
    return total.hexdigest()


def _files(root: Path) -> Iterator[str]:
    for directory, _, names in os.walk(root):
        for name in names:
            yield str((Path(directory) / name).relative_to(root))
