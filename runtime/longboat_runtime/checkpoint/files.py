"""Files that survive a crash, and their contents."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import BinaryIO

import xxhash

from longboat_runtime.checkpoint.manifest import NAME, FileEntry

# How much of a file is in memory while its checksum is computed. More needs fresh pages for each read, which take longer than the checksum.
_CHUNK = 1 << 20


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


def entry(path: str, content: bytes) -> FileEntry:
    """Describes a file of this content. Pure."""
    return FileEntry(path=path, size=len(content), checksum=xxhash.xxh3_128_hexdigest(content))


def describe(root: Path, paths: Iterable[str]) -> tuple[FileEntry, ...]:
    """Describes these files below `root`, sorted by path. Reads them, so it is cheap while the system still caches what was written."""
    return tuple(
        FileEntry(path=path, size=(root / path).stat().st_size, checksum=checksum(root / path))
        for path in sorted(paths)
    )


def check_sizes(root: Path, entries: Iterable[FileEntry]) -> None:
    """Raises FilesDamaged unless every file of `entries` is there with its size. Reads none of them."""
    for expected in entries:
        path = root / expected.path
        if not path.is_file():
            raise FilesDamaged(f"{expected.path} is missing")
        check(expected, path.stat().st_size)


def check(expected: FileEntry, size: int, checksum: str | None = None) -> None:
    """Raises FilesDamaged if a file's size, or its checksum where that is known, isn't what was written. Pure."""
    if size != expected.size:
        raise FilesDamaged(f"{expected.path} has {size} bytes, not {expected.size}")
    if checksum not in (None, expected.checksum):
        raise FilesDamaged(f"{expected.path} is not as it was written")


def read(root: Path, expected: FileEntry) -> bytes:
    """Reads a small file. Raises FilesDamaged if it isn't as it was written, or OSError if it can't be read."""
    content = (root / expected.path).read_bytes()
    check(expected, len(content), xxhash.xxh3_128_hexdigest(content))
    return content


def checksum(path: Path) -> str:
    """Computes the XXH3 (128 bits) of a file's content, in hexadecimal digits."""
    total = xxhash.xxh3_128()
    with path.open("rb") as file:
        add(total, file)
    return total.hexdigest()


def add(total: xxhash.xxh3_128, file: BinaryIO, count: int | None = None) -> None:
    """Adds the next `count` bytes of a file to a checksum, or all that are left."""
    while chunk := file.read(_CHUNK if count is None else min(_CHUNK, count)):
        total.update(chunk)
        if count is not None:
            count -= len(chunk)
