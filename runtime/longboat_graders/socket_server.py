"""What the servers of this package have in common: they listen on a Unix socket, load functions by name, and end what is left behind."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import resource
import signal
import socket
import tempfile
from collections.abc import Callable, Mapping, Set
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import structlog

from longboat_crds.problems import SpecProblem
from longboat_graders import prctl
from longboat_graders.channel import Channel
from longboat_graders.leftovers import remove_tree
from longboat_graders.process_tree import children, end_orphan
from longboat_graders.sandbox import allowed_limits

log = structlog.get_logger()

_REAP_INTERVAL = 1.0
# A child takes one here and four in its zygote; what a child closes is bounded by it, too.
_OPEN_FILES = 4096
# What the names of servers' directories begin with.
_SCRATCH = "longboat-graders-"


class Loaded(Protocol):
    """Names a function that is loaded, and the zygotes that have it."""

    @property
    def zygotes(self) -> Set[int]:
        """Process ids of its zygotes."""

    async def load(self) -> None:
        """Imports the function. Raises SpecProblem if it can't be loaded."""

    async def close(self) -> None:
        """Ends the zygote, and what runs there."""


L = TypeVar("L", bound=Loaded)


class SocketServer(Generic[L]):
    """Answers clients by messages {id, op, ...}; each kind of server says how it loads and what else it can be asked.

    `scratch` is its directory, `gather` the seconds that answers wait for others.
    """

    def __init__(self, scratch: Path, gather: float) -> None:
        self._scratch, self._gather = scratch, gather
        # By name, and their directories.
        self._loaded: dict[str, L] = {}
        self._directories: dict[str, Path] = {}
        self._requests: dict[str, Mapping[str, Any]] = {}
        # Functions that connected clients wait for, and an event that is set while no client is connected.
        self._loads: dict[Channel, set[asyncio.Task[None]]] = {}
        self._alone = asyncio.Event()
        self._alone.set()
        # Functions are replaced one at a time.
        self._replacing = asyncio.Lock()

    # --- What kinds of servers differ in ---

    def listening(self, address: str) -> None:
        """Learns that it listens now."""
        raise NotImplementedError

    def follow(self, channel: Channel, op: str, message: dict[str, Any], body: bytes) -> None:
        """Follows a request of a client. Raises LookupError for an unknown `op`."""
        raise NotImplementedError

    def forget(self, channel: Channel) -> None:
        """Ends what a client that is gone has asked for."""
        raise NotImplementedError

    def made(self, request: Mapping[str, Any], directory: Path) -> L:
        """Makes what `request` asks to load, with a directory of its own."""
        raise NotImplementedError

    async def load(self, request: dict[str, Any]) -> dict[str, Any]:
        """Loads a function, or another one of its name instead; returns the answer."""
        raise NotImplementedError

    def state(self) -> dict[str, Any]:
        """Describes the server for whoever asks."""
        raise NotImplementedError

    async def tidy(self) -> None:
        """Removes what is left that no process of ours uses any more. Called every so often."""

    # --- What they share ---

    async def serve(self, listener: socket.socket, stop: asyncio.Event, *, drains: bool = False) -> None:
        """Listens until `stop` is set and, if it `drains`, no client is connected."""
        server = await asyncio.get_running_loop().create_unix_server(self._connected, sock=listener)
        self.listening(listener.getsockname())
        reaping = asyncio.create_task(self._reap_orphans())
        try:
            await stop.wait()
            if drains:
                await self._alone.wait()
        finally:
            server.close()
            for channel in list(self._loads):
                channel.close()
            for loaded in self._loaded.values():
                await loaded.close()
            reaping.cancel()

    def received(self, channel: Channel, message: dict[str, Any], body: bytes) -> None:
        """Follows a request of a client; see `channel.Receiver`."""
        match message["op"]:
            case "load":
                task = asyncio.get_running_loop().create_task(self._load(message, channel))
                self._loads[channel].add(task)
                task.add_done_callback(self._loads[channel].discard)
            case "state":
                channel.send({"id": message["id"], **self.state()})
            case op:
                try:
                    self.follow(channel, op, message, body)
                except LookupError:
                    channel.send({"id": message["id"], "error": f"unknown op {op!r}"})

    def lost(self, channel: Channel, reason: str) -> None:
        """Forgets a client that is gone, and ends what it has asked for; see `channel.Receiver`."""
        for task in self._loads.pop(channel):
            task.cancel()
        self.forget(channel)
        if not self._loads:
            self._alone.set()

    async def replaced(self, name: str, wanted: Mapping[str, Any], request: Mapping[str, Any]) -> L:
        """Returns what is loaded by this name as `wanted` says; what was loaded otherwise before is closed."""
        async with self._replacing:
            if self._requests.get(name) != wanted:
                if name in self._loaded:
                    # Whoever asks again if this is cancelled gets another one, too.
                    self._requests.pop(name, None)
                    # Until it is closed its zygote must not be taken for an orphan.
                    await self._loaded[name].close()
                    with contextlib.suppress(OSError):
                        remove_tree(str(self._directories[name]))
                self._directories[name] = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=self._scratch))
                self._loaded[name] = self.made(request, self._directories[name])
                self._requests[name] = wanted
            return self._loaded[name]

    def _connected(self) -> Channel:
        channel = Channel(self, self._gather)
        self._loads[channel] = set()
        self._alone.clear()
        return channel

    async def _load(self, request: dict[str, Any], channel: Channel) -> None:
        try:
            answer = await self.load(request)
        except SpecProblem as problem:
            log.warning("a function can't be loaded", problem=str(problem))
            answer = {"problem": list(problem.args)}
        channel.send({"id": request["id"], **answer})

    async def _reap_orphans(self) -> None:
        """Ends and reaps children of this process that aren't zygotes, such as programs of grades whose zygote died.

        Every second, until cancelled.
        """
        while True:
            await asyncio.sleep(_REAP_INTERVAL)
            zygotes = {pid for loaded in self._loaded.values() for pid in loaded.zygotes}
            for pid in set(children()).difference(zygotes):
                end_orphan(pid)
            await self.tidy()


def listen(path: Path) -> socket.socket:
    """Makes a socket at `path`, open to the directory's group."""
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX)
    mask = os.umask(0o007)
    try:
        listener.bind(str(path))
    finally:
        os.umask(mask)
    return listener


def scratch_directory(parent: str) -> tuple[Path, int]:
    """Makes a directory for graders there, and removes those of graders that were killed: `/tmp` of a pod outlives its container.

    Graders hold a lock on theirs, which the kernel ends with them: the file descriptor that is returned.
    """
    while True:
        scratch = tempfile.mkdtemp(prefix=_SCRATCH, dir=parent)
        owned = os.open(scratch, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        fcntl.flock(owned, fcntl.LOCK_EX)
        # Other graders may have removed it before it was locked.
        if os.path.isdir(scratch):
            break
        os.close(owned)
    for name in os.listdir(parent):
        if name.startswith(_SCRATCH) and f"{parent}/{name}" != scratch:
            # It belongs to somebody else, or others are removing it.
            with contextlib.suppress(OSError):
                _remove_unowned(f"{parent}/{name}")
    return Path(scratch), owned


def _remove_unowned(directory: str) -> None:
    """Removes it if it is this user's and its graders don't run. Raises OSError if they do, or if it can't be removed."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        # Root removes nothing that others could change meanwhile.
        if os.fstat(descriptor).st_uid == os.geteuid():
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            remove_tree(directory)
    finally:
        os.close(descriptor)


async def _run(server: SocketServer[Any], listener: socket.socket, *, drains: bool) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGTERM, signal.SIGINT))
    await server.serve(listener, stop, drains=drains)


def run(make: Callable[[], SocketServer[Any]], listener: socket.socket, *, drains: bool = False) -> None:
    """Runs a server in this process until SIGTERM or SIGINT, which may be blocked until they are listened to.

    If it `drains`, its clients may end first.
    """
    prctl.hide_memory()
    prctl.adopt_orphans()
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, allowed_limits(resource.RLIMIT_NOFILE, _OPEN_FILES, hard))
    asyncio.run(_run(make(), listener, drains=drains))


def main(path: Path, make: Callable[[Path], SocketServer[Any]], *, drains: bool = False) -> None:
    """Runs a server of a pod's container at `path`; `make` makes it, given its directory. If it `drains`, its clients may end first."""
    scratch, owned = scratch_directory(tempfile.gettempdir())
    try:
        run(lambda: make(scratch), listen(path), drains=drains)
    finally:
        remove_tree(str(scratch))
        os.close(owned)
