"""The graders and environments of a local run: the same servers as in pods, a child process for each pool."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from longboat_crds.environments import EnvironmentPoolSpec
from longboat_crds.rewards import RewardPoolSpec


@contextmanager
def local_graders(pools: Sequence[RewardPoolSpec], folder: Path, config_maps: Path) -> Iterator[Mapping[str, Path]]:
    """Runs those of all pools within the block, and no longer than this process: they end with it even if it is killed.

    Yields where each pool's graders will listen, below `folder`, by its name; the reward scheduler waits until they do. To be called in
    the main thread: they end with the thread that started them.
    """
    folder.chmod(0o711)  # for graders of root, who are another user
    sockets = {pool.name: folder / f"{pool.name}.sock" for pool in pools}
    with ExitStack() as stack:
        for pool in pools:
            processes = ["--processes", str(pool.graders_per_pod)]
            stack.enter_context(_server("graders", sockets[pool.name], config_maps, processes))
        yield sockets


@contextmanager
def local_environments(
    pools: Sequence[EnvironmentPoolSpec], folder: Path, config_maps: Path
) -> Iterator[Mapping[str, Path]]:
    """Runs the environments of all pools within the block, as `local_graders` does. They run as this user, and log what isn't enforced."""
    sockets = {pool.name: folder / f"{pool.name}.environments.sock" for pool in pools}
    with ExitStack() as stack:
        for pool in pools:
            stack.enter_context(_server("environments", sockets[pool.name], config_maps))
        yield sockets


@contextmanager
def _server(kind: str, socket: Path, config_maps: Path, options: Sequence[str] = ()) -> Iterator[None]:
    command = [sys.executable, "-m", "longboat_runtime.cli", kind, "--socket", str(socket), *options]
    command += ["--config-maps", str(config_maps), "--parent", str(os.getpid())]
    # In a session of its own: Ctrl-C reaches the driver alone, which suspends the job.
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
