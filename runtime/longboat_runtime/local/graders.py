"""The graders of a local run: the same server as in reward pods, as a child process."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def local_graders(processes: int, socket: Path, config_maps: Path) -> Iterator[None]:
    """Runs them within the block, and no longer than this process: they end with it even if it is killed.

    The reward pool waits until they listen. To be called in the main thread: they end with the thread that started them.
    """
    command = [sys.executable, "-m", "longboat_runtime.cli", "graders", "--socket", str(socket)]
    command += ["--processes", str(processes), "--config-maps", str(config_maps), "--parent", str(os.getpid())]
    # In a group of its own: Ctrl-C suspends the job, and the last grades are still needed for that.
    process = subprocess.Popen(command, start_new_session=True)
    try:
        yield
    finally:
        process.terminate()
        process.wait()


def link_config_maps(folder: Path, directories: Mapping[str, Path]) -> Path:
    """Makes `folder`, where each ConfigMap's name leads to the directory that stands for it."""
    folder.mkdir()
    for name, directory in directories.items():
        (folder / name).symlink_to(directory.resolve())
    return folder
