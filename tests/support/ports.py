"""TCP ports for servers that have to be told theirs."""

from __future__ import annotations

import os
import socket
from itertools import cycle

# Below the kernel's ephemeral ports, any of which another process may be given before the test's server binds it.
_FIRST, _OF_WORKER = 20_000, 100
_WORKER = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
_ports = cycle(range(_FIRST + _WORKER * _OF_WORKER, _FIRST + (_WORKER + 1) * _OF_WORKER))


def free_port() -> int:
    """A port that nobody listens at, and that no other worker of this run of tests is given."""
    while True:
        port = next(_ports)
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("", port))
            except OSError:
                continue
        return port
