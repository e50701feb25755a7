"""TCP ports for servers that have to be told theirs."""

from __future__ import annotations

import os
import socket
from itertools import cycle

# Above the ports of Ray's workers, and below the kernel's ephemeral ones, any of which another process may be given before the test's server
# binds it.
_FIRST, _OF_WORKER = 20_000, 100
_WORKER = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
_ports = cycle(range(_FIRST + _WORKER * _OF_WORKER, _FIRST + (_WORKER + 1) * _OF_WORKER))


def free_port() -> int:
    """Finds a port that nobody listens at, and that no other worker of this run of tests is given."""
    return adjacent_ports(1)


def adjacent_ports(count: int) -> int:
    """Finds `count` such ports in a row, 1 to 100; returns the first."""
    ports: list[int] = []
    while len(ports) < count:
        port = next(_ports)
        if ports and port != ports[-1] + 1:
            ports = []
        ports = [*ports, port] if _free(port) else []
    return ports[0]


def _free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True
