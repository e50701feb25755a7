"""Waiting for something to become true."""

import socket
import time
from collections.abc import Callable
from pathlib import Path

from e2e.cluster.errors import ClusterError

# Far more than a process takes to become the program that it runs, even if that is read from a slow disk.
EXEC_SECONDS = 5.0


def wait_until(condition: Callable[[], bool], complaint: str, seconds: float, interval: float = 0.05) -> None:
    """Polls until `condition()` is true; raises ClusterError with the complaint if it isn't after so many seconds."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise ClusterError(f"{complaint} (waited {seconds:g} s)")
        time.sleep(interval)


def wait_for_process(ready: Callable[[], bool], alive: Callable[[], bool], log: Path, seconds: float = 300) -> None:
    """Waits until a process is ready; raises ClusterError with the end of its log when it ends or takes too long."""
    try:
        wait_until(lambda: ready() or _ended(alive), f"{log.stem} is not ready", seconds)
        if not ready():
            raise ClusterError(f"{log.stem} has ended")
    except ClusterError as error:
        tail = log.read_text(errors="replace").splitlines()[-20:]
        raise ClusterError("\n  ".join([f"{error}; the end of its log:", *tail])) from error


def accepts_connections(path: Path) -> bool:
    """Whether a server listens on a Unix socket; its file is there a moment before, while connections are refused."""
    with socket.socket(socket.AF_UNIX) as client:
        try:
            client.connect(str(path))
        except (FileNotFoundError, ConnectionRefusedError):
            return False
    return True


def _ended(alive: Callable[[], bool]) -> bool:
    """Looks twice: a process has no command line for a moment while it becomes the program that it runs."""
    if alive():
        return False
    time.sleep(EXEC_SECONDS)
    return not alive()
