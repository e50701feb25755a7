"""Waiting for the cluster's processes."""

import operator
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from e2e.cluster import process, waiting
from e2e.cluster.errors import ClusterError
from e2e.cluster.waiting import accepts_connections, wait_for_process
from tests.support.waiting import eventually


def answers(*given: bool) -> Callable[[], bool]:
    """Gives these answers, the last one for ever."""
    left = list(given)
    return lambda: left.pop(0) if len(left) > 1 else left[0]


@pytest.fixture(autouse=True)
def _quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "EXEC_SECONDS", 0.0)


def test_a_process_that_is_just_becoming_its_program_has_not_ended(tmp_path: Path) -> None:
    wait_for_process(answers(False, False, True), answers(True, False, True), tmp_path / "log")


def test_a_process_that_has_ended_is_told_with_the_end_of_its_log(tmp_path: Path) -> None:
    log = tmp_path / "kubelet.log"
    log.write_text("no such flag\n")
    with pytest.raises(ClusterError, match=r"kubelet has ended.*\n.*no such flag"):
        wait_for_process(answers(False), answers(True, False), log)


HALF_ENDED = """
import ctypes, signal, socket, threading
listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
threading.Thread(target=signal.pause).start()
ctypes.PyDLL(None).pthread_exit(None)
"""


def test_a_process_is_killed_once_its_last_thread_has_let_go_of_its_port() -> None:
    """Its first thread has ended, and with it the command line; the port is still taken."""
    with subprocess.Popen([sys.executable, "-c", HALF_ENDED], stdout=subprocess.PIPE, text=True) as started:
        assert started.stdout is not None
        port = int(started.stdout.readline())
        eventually(lambda: process.command_line(started.pid), operator.not_)
        assert process.runs(started.pid)
        process.kill(started.pid)
        socket.create_server(("127.0.0.1", port)).close()


def test_a_server_accepts_connections_once_it_listens_not_once_its_file_is_there(tmp_path: Path) -> None:
    path = tmp_path / "containerd.sock"
    assert not accepts_connections(path)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        assert path.is_socket()
        assert not accepts_connections(path)
        server.listen()
        assert accepts_connections(path)
    assert not accepts_connections(path), "its server has ended"
