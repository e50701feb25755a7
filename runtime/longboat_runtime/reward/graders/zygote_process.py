"""A running zygote as the server sees it: its process, and the messages to and from it."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import structlog

from longboat_crds.reasons import Reason
from longboat_runtime.problems import SpecProblem

log = structlog.get_logger()

# Importing a function may read large libraries from a slow volume.
LOAD_SECONDS = 120.0
# How many sockets can be sent with a message.
MOST_AT_ONCE = 16


class ZygoteProcess:
    """A running zygote and the server's end of the pair of sockets.

    `heard` gets its messages but the first (see `loaded`), `lost` is called when it has ended or is closed.
    """

    def __init__(
        self,
        request: Mapping[str, Any],
        zygotes: set[int],
        heard: Callable[[Mapping[str, Any]], None],
        lost: Callable[[], None],
    ) -> None:
        self._zygotes, self._heard, self._lost = zygotes, heard, lost
        self._socket, child_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        # Hashes of strings decide the order of sets, and with it, in places, what a function returns.
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "PYTHONHASHSEED": "0"}
        with child_end, tempfile.TemporaryFile() as file:
            file.write(json.dumps(request).encode())
            file.seek(0)
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "longboat_runtime.reward.graders.zygote", str(child_end.fileno())],
                pass_fds=[child_end.fileno()],
                stdin=file,
                env=environment,
            )
        zygotes.add(self._process.pid)
        self._loop = asyncio.get_running_loop()
        # Its answer to the request to load; None if it ended instead.
        self.loaded: asyncio.Future[dict[str, Any] | None] = self._loop.create_future()
        self.dead = False
        self._closing = False
        self._socket.setblocking(False)
        self._loop.add_reader(self._socket, self._listen)

    def tell(self, message: Mapping[str, Any], sockets: Sequence[socket.socket] = ()) -> None:
        """Sends a message, and up to MOST_AT_ONCE sockets with it. The few that are under way always fit into the socket's buffer."""
        data = json.dumps(message).encode()
        with suppress(ConnectionError):
            if sockets:
                socket.send_fds(self._socket, [data], [each.fileno() for each in sockets])
            else:
                self._socket.send(data)

    async def footprint(self, field: str) -> dict[str, Any]:
        """Returns what it holds (see `zygote.footprint`) once it has loaded the function.

        If it doesn't, or not within LOAD_SECONDS, closes it and raises SpecProblem for `field`, or for a part of that.
        """
        try:
            answer = await asyncio.wait_for(self.loaded, LOAD_SECONDS)
        except TimeoutError:
            await self.close()
            raise SpecProblem(
                Reason.REWARD_FUNCTION_INVALID,
                field,
                f"Importing it takes more than {LOAD_SECONDS:g} s. Load less when the module is imported.",
            ) from None
        if answer is None:
            code = await self.close()
            raise SpecProblem(
                Reason.REWARD_FUNCTION_INVALID,
                field,
                f"The process that imports it ends with code {code} (negative: signal). The graders' log has its output.",
            )
        if "problem" in answer:
            await self.close()
            raise SpecProblem(*answer["problem"])
        footprint: dict[str, Any] = answer["loaded"]
        return footprint

    def kill(self) -> None:
        """Ends it, and so its children."""
        self._process.kill()

    async def close(self) -> int:
        """Ends it and returns its exit code (negative: signal)."""
        self._closing = True
        self._end()
        try:
            code = await asyncio.wait_for(asyncio.to_thread(self._process.wait), 5)
        except TimeoutError:
            self._process.kill()
            code = await asyncio.to_thread(self._process.wait)
        self._zygotes.discard(self._process.pid)
        return code

    def _listen(self) -> None:
        try:
            data = self._socket.recv(2**20)
        except BlockingIOError:
            return
        except ConnectionError:
            data = b""
        if not data:
            self._end()
            return
        for message in json.loads(data):
            if self.loaded.done():
                self._heard(message)
            else:
                self.loaded.set_result(message)

    def _end(self) -> None:
        if self.dead:
            return
        self.dead = True
        self._loop.remove_reader(self._socket)
        self._socket.close()
        if not self.loaded.done():
            self.loaded.set_result(None)
        if not self._closing:
            log.warning("a zygote is lost", pid=self._process.pid)
        self._lost()
