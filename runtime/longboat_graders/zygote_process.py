"""A zygote's process as its server sees it: starts it, and again when it has died; hands on what it says."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence, Set
from contextlib import suppress
from typing import Any, Protocol

import structlog

from longboat_crds.problems import SpecProblem
from longboat_crds.reasons import Reason

log = structlog.get_logger()

# Importing a function may read large libraries from a slow volume.
LOAD_SECONDS = 120.0
# How many sockets can be sent with a message.
MOST_AT_ONCE = 16


class ZygoteOwner(Protocol):
    """Follows a zygote."""

    def loaded(self, answer: Mapping[str, Any]) -> None:
        """Takes the answer of a zygote that has loaded its function."""

    def not_loaded(self, problem: SpecProblem) -> None:
        """Takes the problem of a zygote that was to be started again."""

    def heard(self, message: Mapping[str, Any]) -> None:
        """Takes a message about a child."""

    def lost(self) -> None:
        """Learns that the zygote has ended, and all its children with it."""


class ZygoteHost:
    """Runs one zygote at a time: `module`, which is told `request`.

    `field` is the spec path of what it loads, `invalid` the reason of a problem with that.
    """

    def __init__(
        self, name: str, module: str, request: Mapping[str, Any], field: str, invalid: Reason, owner: ZygoteOwner
    ) -> None:
        self._name, self._module, self._request, self._field = name, module, request, field
        self._invalid, self._owner = invalid, owner
        self._loop = asyncio.get_running_loop()
        self._starting = asyncio.Lock()
        self._zygote: ZygoteProcess | None = None
        # Process ids of those that haven't been waited for.
        self._pids: set[int] = set()
        self._restarting: asyncio.Task[None] | None = None
        self.closed = False

    @property
    def pids(self) -> Set[int]:
        """Process ids of zygotes: the running one, and one that is being ended."""
        return self._pids

    @property
    def running(self) -> bool:
        return self._zygote is not None and not self._zygote.dead

    async def load(self) -> None:
        """Starts a zygote unless it runs. Raises SpecProblem if it can't load its function."""
        async with self._starting:
            if self.closed:
                message = "It was loaded anew meanwhile, or this server ends."
                raise SpecProblem(self._invalid, self._field, message, fatal=False)
            if self._zygote is not None and self._zygote.dead:
                await self._end(self._zygote)
            if self._zygote is None:
                self._zygote, answer = await self._start()
                self._owner.loaded(answer)

    def restart(self) -> None:
        """Starts a zygote, later, unless that is under way."""
        if self._restarting is None or self._restarting.done():
            self._restarting = self._loop.create_task(self._restart())

    def tell(self, message: Mapping[str, Any], sockets: Sequence[socket.socket] = ()) -> None:
        """Sends a message to the zygote, if one runs; see `ZygoteProcess.tell`."""
        if self._zygote is not None and not self._zygote.dead:
            self._zygote.tell(message, sockets)

    def kill(self) -> None:
        """Ends the zygote, and so its children."""
        if self._zygote is not None:
            self._zygote.kill()

    async def close(self) -> None:
        """Ends the zygote for good."""
        self.closed = True
        if self._restarting is not None:
            self._restarting.cancel()
        async with self._starting:
            if self._zygote is not None:
                self._zygote.hang_up()
                self._owner.lost()
                await self._end(self._zygote)

    async def _restart(self) -> None:
        try:
            await self.load()
        except SpecProblem as problem:
            self._owner.not_loaded(problem)

    async def _start(self) -> tuple[ZygoteProcess, Mapping[str, Any]]:
        try:
            zygote = ZygoteProcess(self._module, self._request)
        except OSError as error:
            message = f"The process that imports it can't be started: {error}."
            raise SpecProblem(self._invalid, self._field, message, fatal=False) from error
        self._pids.add(zygote.pid)
        self._loop.add_reader(zygote.socket, self._hear, zygote)
        try:
            answer = await zygote.loaded(self._field, self._invalid)
        except BaseException:
            await self._end(zygote)
            raise
        return zygote, answer

    async def _end(self, zygote: ZygoteProcess) -> None:
        self._zygote = None
        await zygote.close()
        self._pids.discard(zygote.pid)

    def _hear(self, zygote: ZygoteProcess) -> None:
        """Hands on what the zygote has said, and its end."""
        for message in zygote.received():
            self._owner.heard(message)
        if zygote.dead:
            log.warning("a zygote is lost", function=self._name, pid=zygote.pid)
            self._owner.lost()


class ZygoteProcess:
    """A running zygote as the server sees it: its process, and the messages on `socket`, the server's end of the pair of sockets."""

    def __init__(self, module: str, request: Mapping[str, Any]) -> None:
        self.socket, child_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        # Hashes of strings decide the order of sets, and with it, in places, what a function returns.
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "PYTHONHASHSEED": "0"}
        with child_end, open(os.memfd_create("request"), "w+b") as file:
            file.write(json.dumps(request).encode())
            file.seek(0)
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", module, str(child_end.fileno())],
                pass_fds=[child_end.fileno()],
                stdin=file,
                env=environment,
            )
        self._loop = asyncio.get_running_loop()
        # Its answer to the request to load; None if it ended instead.
        self._loaded: asyncio.Future[dict[str, Any] | None] = self._loop.create_future()
        self.dead = False
        self.socket.setblocking(False)

    @property
    def pid(self) -> int:
        return self._process.pid

    def tell(self, message: Mapping[str, Any], sockets: Sequence[socket.socket] = ()) -> None:
        """Sends a message, and up to MOST_AT_ONCE sockets with it. The few that are under way always fit into the socket's buffer."""
        data = json.dumps(message).encode()
        with suppress(ConnectionError):
            if sockets:
                socket.send_fds(self.socket, [data], [each.fileno() for each in sockets])
            else:
                self.socket.send(data)

    async def loaded(self, field: str, invalid: Reason) -> Mapping[str, Any]:
        """Returns its answer once it has loaded the function.

        Raises SpecProblem for `field`, or for a part of that, if it doesn't, or not within LOAD_SECONDS.
        """
        try:
            answer = await asyncio.wait_for(self._loaded, LOAD_SECONDS)
        except TimeoutError:
            raise SpecProblem(
                invalid,
                field,
                f"Importing it takes more than {LOAD_SECONDS:g} s. Load less when the module is imported.",
            ) from None
        if answer is None:
            code = await self.close()
            raise SpecProblem(
                invalid,
                field,
                f"The process that imports it ends with code {code} (negative: signal). The log of its container has its output.",
            )
        if "problem" in answer:
            raise SpecProblem(*answer["problem"])
        return answer

    def kill(self) -> None:
        """Ends it, and so its children."""
        self._process.kill()

    async def close(self) -> int:
        """Ends it and returns its exit code (negative: signal)."""
        self.hang_up()
        try:
            return await asyncio.wait_for(asyncio.to_thread(self._process.wait), 5)
        except TimeoutError:
            self._process.kill()
            return await asyncio.to_thread(self._process.wait)

    def received(self) -> Sequence[Mapping[str, Any]]:
        """Returns what it has said since, its answer to the request to load aside. It is `dead` from here on if it has ended."""
        try:
            data = self.socket.recv(2**20)
        except BlockingIOError:
            return []
        except ConnectionError:
            data = b""
        if not data:
            self.hang_up()
            return []
        messages: list[Mapping[str, Any]] = json.loads(data)
        if not self._loaded.done():
            self._loaded.set_result(dict(messages.pop(0)))
        return messages

    def hang_up(self) -> None:
        """Closes the connection, upon which it ends."""
        if self.dead:
            return
        self.dead = True
        self._loop.remove_reader(self.socket)
        self.socket.close()
        if not self._loaded.done():
            self._loaded.set_result(None)
