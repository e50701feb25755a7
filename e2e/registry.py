"""A registry of images on this machine, such as teams have: the CNCF's, without TLS."""

import json
import os
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from e2e.cluster.binaries import REGISTRY
from e2e.cluster.waiting import wait_for_process


@contextmanager
def serve(folder: Path, host: str, port: int = 5000) -> Iterator[str]:
    """Runs a registry that keeps its images in a new folder; yields its address."""
    folder.mkdir()
    address, log = f"{host}:{port}", folder / "registry.log"
    configuration = {
        "version": 0.1,
        "storage": {"filesystem": {"rootdirectory": str(folder / "images")}},
        "http": {"addr": address},
    }
    file = folder / "configuration.yaml"
    file.write_text(json.dumps(configuration))
    command = [str(REGISTRY.ensure()), "serve", str(file)]
    environment = {**os.environ, "OTEL_TRACES_EXPORTER": "none"}
    with log.open("w") as output:
        process = subprocess.Popen(command, env=environment, stdout=output, stderr=output)
    try:
        wait_for_process(lambda: _accepts(host, port), lambda: process.poll() is None, log)
        yield address
    finally:
        process.terminate()
        process.wait()


def _accepts(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port)).close()
    except OSError:
        return False
    return True
