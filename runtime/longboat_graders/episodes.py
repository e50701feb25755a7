"""The server of the `environment` container: plays episodes, each in processes of its own, as its clients ask (see `episode_messages`)."""

from __future__ import annotations

import asyncio
import ctypes
import os
import socket
import time
from collections.abc import Mapping, Sequence, Set
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any
from weakref import WeakSet

import structlog

from longboat_crds.problems import SpecProblem
from longboat_crds.reasons import Reason
from longboat_graders import local, socket_server
from longboat_graders.channel import Channel
from longboat_graders.environment import CONFIG_MAPS
from longboat_graders.episode_messages import EpisodeEnd, EpisodeResult
from longboat_graders.leftovers import remove_tree
from longboat_graders.seccomp import can_ask
from longboat_graders.socket_server import SocketServer
from longboat_graders.zygote_process import MOST_AT_ONCE, ZygoteHost

log = structlog.get_logger()

# A zygote that hasn't forked for this long is stuck.
STUCK_SECONDS = 15.0
# Directories that outlive an environment container, and that its processes may write to; and the list of System V shared memory.
TEMPORARY = (Path("/tmp"), Path("/dev/shm"))  # noqa: S108 - the container's own
_SHARED_MEMORY = Path("/proc/sysvipc/shm")
_REMOVE_ID = 0
# No more entries below one of a temporary directory are looked at.
_MOST_ENTRIES = 10_000
_OTHERS_FILES = (
    "environments run as this user, and may read and write what it may; what they leave in /tmp and /dev/shm, outside of their own "
    "directories, stays there"
)
_UNASKED = "without seccomp's notifications (Linux 5.5) an episode may start many processes before it is ended for it"


class LoadedEnvironment:
    """An environment, ready to be played: its zygote, and the episodes that it plays."""

    def __init__(self, function: Mapping[str, Any], field: str, config_maps: Path, scratch: Path) -> None:
        name = str(function["name"])
        request = {"function": dict(function), "field": field, "config_maps": str(config_maps), "scratch": str(scratch)}
        self._name, self._numbers = name, 0
        self._zygote = ZygoteHost(
            name, "longboat_graders.episode_zygote", request, field, Reason.ENVIRONMENT_INVALID, self
        )
        self.footprint: Mapping[str, Any] = {}
        self._playing: WeakSet[Playing] = WeakSet()
        # What the zygote is asked to fork, by number: each becomes None, or why it can't be. It is asked for no more at once than it can take.
        self._forking: dict[int, asyncio.Future[str | None]] = {}
        self._may_fork = asyncio.Semaphore(MOST_AT_ONCE)

    @property
    def zygotes(self) -> Set[int]:
        """Process ids of its zygotes."""
        return self._zygote.pids

    async def load(self) -> None:
        """Imports the environment. Raises SpecProblem if it can't be loaded."""
        await self._zygote.load()

    async def close(self) -> None:
        """Ends the zygote and all its episodes."""
        for playing in self._playing:
            playing.abandon()
        await self._zygote.close()

    async def play(self, playing: Playing, launch: Mapping[str, Any], task: bytes) -> None:
        """Has an episode played, which `playing` follows."""
        self._playing.add(playing)
        async with self._may_fork:
            try:
                await self._zygote.load()
            except SpecProblem as problem:
                playing.lose(str(problem))
                return
            error = await self._fork(playing, launch, task)
        if error is not None:
            playing.lose(f"its process can't be started: {error}")

    async def _fork(self, playing: Playing, launch: Mapping[str, Any], task: bytes) -> str | None:
        """Has the zygote fork a keeper, which gets the request. Returns why it can't; a zygote that doesn't answer is ended."""
        loop = asyncio.get_running_loop()
        own, keepers = socket.socketpair()
        self._numbers += 1
        number = self._numbers
        forked = self._forking[number] = loop.create_future()
        with keepers:
            self._zygote.tell({"fork": [number]}, [keepers])
        channel: Channel
        try:
            _, channel = await loop.create_unix_connection(lambda: Channel(playing), sock=own)
            playing.connected(channel, launch, task)
            return await asyncio.wait_for(forked, STUCK_SECONDS)
        except TimeoutError:
            log.warning("a zygote is stuck", environment=self._name)
            self._zygote.kill()
            return None
        finally:
            self._forking.pop(number, None)

    def _forked(self, number: int, error: str | None = None) -> None:
        forked = self._forking.pop(number, None)
        if forked is not None and not forked.done():
            forked.set_result(error)

    # --- What its zygote says: see `ZygoteOwner` ---

    def loaded(self, answer: Mapping[str, Any]) -> None:
        """Takes note of what the zygote holds."""
        self.footprint = answer["loaded"]

    def not_loaded(self, problem: SpecProblem) -> None:
        """Does nothing: a zygote is started again by the next episode, which gets the problem."""

    def heard(self, message: Mapping[str, Any]) -> None:
        """Follows what the zygote says about a keeper. What becomes of the episode, the keeper itself tells."""
        match message:
            case {"forked": number}:
                self._forked(number)
            case {"failed": number, "error": error}:
                self._forked(number, error)

    def lost(self) -> None:
        """Forgets what isn't forked. Keepers end with their zygote, and their connections with them."""
        for number in [*self._forking]:
            self._forked(number)


class Playing:
    """One episode that a client has asked for by `identity`: hands on what its keeper says."""

    def __init__(self, server: EpisodeServer, client: Channel, identity: int) -> None:
        self.client, self.identity = client, identity
        self.began, self.began_at = time.monotonic(), time.time()
        self._server = server
        self._keeper: Channel | None = None
        self._stopped = self._over = False

    def connected(self, keeper: Channel, launch: Mapping[str, Any], task: bytes) -> None:
        """Sends the request, and that it is stopped already if so."""
        self._keeper = keeper
        keeper.send({"launch": launch}, task)
        if self._stopped:
            keeper.send({"stop": True})

    def stop(self) -> None:
        """Has the environment told to stop, once."""
        if self._stopped:
            return
        self._stopped = True
        if self._keeper is not None and self._keeper.open:
            self._keeper.send({"stop": True})

    def abandon(self) -> None:
        """Has its keeper end it at once."""
        if self._keeper is not None:
            self._keeper.close()

    def lose(self, message: str) -> None:
        """Ends it without a result of its keeper's."""
        end = EpisodeEnd.STOPPED if self._stopped else EpisodeEnd.LOST
        self._end(EpisodeResult(end, message=message, seconds=time.monotonic() - self.began).to_json())

    def received(self, _: Channel, message: dict[str, Any], body: bytes) -> None:
        """Takes what the keeper says; see `channel.Receiver`."""
        del body
        if "result" in message:
            self._end(message["result"])
        elif self.client.open:
            self.client.send({"id": self.identity, "begun": True})

    def lost(self, _: Channel, reason: str) -> None:
        """See `channel.Receiver`."""
        self.lose(f"the process that watches it has ended: {reason}")

    def _end(self, result: Mapping[str, Any]) -> None:
        if self._over:
            return
        self._over = True
        self._server.ended(self)
        if self.client.open:
            self.client.send({"id": self.identity, "result": result})


class EpisodeServer(SocketServer[LoadedEnvironment]):
    """Plays episodes as they are asked for; how many at once, its clients decide.

    `temporary` are directories that nobody else uses as this user: what an episode leaves there is removed once every episode that runs
    has begun after it was last changed. `missing` says what isn't enforced here.
    """

    def __init__(
        self,
        scratch: Path,
        config_maps: Path = Path(CONFIG_MAPS),
        temporary: Sequence[Path] = (),
        missing: Sequence[str] = (),
    ) -> None:
        super().__init__(scratch, gather=0.0)
        self._config_maps, self._temporary = config_maps, temporary
        self._unenforced = [*missing, *([] if can_ask() else [_UNASKED])]
        self._playing: set[Playing] = set()
        self._starting: set[asyncio.Task[None]] = set()
        self._loading = 0
        # What was there before any episode, such as what an environment's import has made.
        self._expected = {str(scratch)}

    def listening(self, address: str) -> None:
        log.info("environments listen", socket=address)
        for line in self._unenforced:
            log.warning("this node can't enforce all limits of environments", missing=line)
        self._remove_older(time.time())

    def follow(self, channel: Channel, op: str, message: dict[str, Any], body: bytes) -> None:
        match op:
            case "play":
                self._play(channel, message, body)
            case "stop":
                for playing in self._playing:
                    if (playing.client, playing.identity) == (channel, message["id"]):
                        playing.stop()
            case _:
                raise LookupError(op)

    def forget(self, channel: Channel) -> None:
        for playing in self._playing:
            if playing.client is channel:
                playing.stop()

    def made(self, request: Mapping[str, Any], directory: Path) -> LoadedEnvironment:
        return LoadedEnvironment(request["function"], request["field"], self._config_maps, directory)

    async def load(self, request: dict[str, Any]) -> dict[str, Any]:
        name = request["function"]["name"]
        if not self._playing and not self._loading:
            # What episodes have left must not pass for what the import makes.
            await asyncio.to_thread(self._remove_older, time.time())
        self._loading += 1
        try:
            loaded = await self.replaced(name, {key: request[key] for key in ("function", "field")}, request)
            await loaded.load()
            if not self._playing:
                self._expected |= {path for parent in self._temporary for path in _listed(parent)}
        finally:
            self._loading -= 1
        log.info(
            "an environment is loaded",
            environment=name,
            large_modules=dict(loaded.footprint["modules"]),
            memory_mib=loaded.footprint["resident"] >> 20,
            fork_ms=round(1e3 * loaded.footprint["fork"], 2),
        )
        if loaded.footprint["threads"] > 1:
            log.warning(
                "importing an environment starts threads, which its episodes lack: start them in the episode",
                environment=name,
            )
        return {"problem": None}

    def state(self) -> dict[str, Any]:
        environments = {name: loaded.footprint for name, loaded in self._loaded.items()}
        return {"playing": len(self._playing), "unenforced": self._unenforced, "environments": environments}

    async def tidy(self) -> None:
        """Removes what episodes that have ended left in the temporary directories, and their shared memory."""
        if self._temporary and not self._loading:
            oldest = min((playing.began_at for playing in self._playing), default=time.time())
            await asyncio.to_thread(self._remove_older, oldest)

    def ended(self, playing: Playing) -> None:
        """Forgets an episode that has ended."""
        self._playing.discard(playing)

    def _play(self, channel: Channel, message: Mapping[str, Any], task: bytes) -> None:
        playing = Playing(self, channel, message["id"])
        loaded = self._loaded.get(message["environment"])
        if loaded is None:
            playing.lose(f"no environment {message['environment']!r} is loaded here")
            return
        self._playing.add(playing)
        starting = asyncio.get_running_loop().create_task(loaded.play(playing, message["launch"], task))
        self._starting.add(starting)
        starting.add_done_callback(partial(self._started, playing))

    def _started(self, playing: Playing, starting: asyncio.Task[None]) -> None:
        self._starting.discard(starting)
        if not starting.cancelled() and (error := starting.exception()) is not None:
            playing.lose(f"it can't be started: {error}")

    def _remove_older(self, than: float) -> None:
        """Removes this user's entries of the temporary directories that were last changed before, and such shared memory."""
        for parent in self._temporary:
            for path in _listed(parent) - self._expected:
                with suppress(OSError):
                    if _changed(path) < than:
                        remove_tree(path) if os.path.isdir(path) and not os.path.islink(path) else os.unlink(path)
        if self._temporary:
            _remove_shared_memory(than)


def _listed(parent: Path) -> set[str]:
    """Returns the paths of this user's entries in a directory."""
    paths, user = set(), os.geteuid()
    with suppress(OSError), os.scandir(parent) as entries:
        for entry in entries:
            with suppress(OSError):
                if entry.stat(follow_symlinks=False).st_uid == user:
                    paths.add(entry.path)
    return paths


def _changed(path: str) -> float:
    """Returns when a file, or anything in a directory, was last changed, as far as _MOST_ENTRIES go."""
    newest, pending, entries = os.lstat(path).st_ctime, [path], 0
    while pending and entries < _MOST_ENTRIES:
        with suppress(OSError), os.scandir(pending.pop()) as scanned:
            for entry in scanned:
                entries += 1
                newest = max(newest, entry.stat(follow_symlinks=False).st_ctime)
                if entry.is_dir(follow_symlinks=False):
                    pending.append(entry.path)
    return newest


def _remove_shared_memory(than: float) -> None:
    """Removes this user's System V shared memory that no process has attached, and that was last changed before."""
    with suppress(OSError, ValueError):
        names, *lines = (line.split() for line in _SHARED_MEMORY.read_text().splitlines())
        for line in lines:
            segment = dict(zip(names, map(int, line), strict=True))
            last = max(segment["atime"], segment["dtime"], segment["ctime"])
            if segment["uid"] == os.geteuid() and not segment["nattch"] and last < than:
                ctypes.CDLL(None).shmctl(segment["shmid"], _REMOVE_ID, None)


def main(path: Path, config_maps: Path = Path(CONFIG_MAPS), temporary: Sequence[Path] = TEMPORARY) -> None:
    """Runs the environments of a pod: `longboat environments --socket PATH`.

    All containers of a pod are told to end at once. This one waits for the other, whose agent stays as long as episodes are played there.
    """
    socket_server.main(path, lambda scratch: EpisodeServer(scratch, config_maps, temporary), drains=True)


def serve_locally(path: Path, config_maps: Path, parent: int) -> int:
    """Runs environments without a container, as this user, whose temporary files others use too; see `local.serve`."""

    def make(scratch: Path, missing: list[str]) -> EpisodeServer:
        return EpisodeServer(scratch, config_maps, missing=[_OTHERS_FILES, *missing])

    return local.serve(path, make, parent, other_user=False)
