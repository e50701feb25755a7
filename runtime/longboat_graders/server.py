"""The graders' Unix socket: answers what a reward worker asks (see `messages`), and decides how many grades run at once."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import resource
import signal
import socket
import tempfile
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import structlog

from longboat_crds.problems import SpecProblem
from longboat_crds.reward_kinds import RewardIsolation
from longboat_graders import landlock, prctl
from longboat_graders.cgroup import CGROUP_ROOT
from longboat_graders.channel import Channel
from longboat_graders.function import CONFIG_MAPS
from longboat_graders.leftovers import remove_tree
from longboat_graders.messages import FunctionOutcome, OutcomeKind
from longboat_graders.process_tree import children, end_orphan
from longboat_graders.quota import LOOK_SECONDS, Quota
from longboat_graders.sandbox import allowed_limits
from longboat_graders.supervisor import Grading, LoadedFunction
from longboat_graders.times import waiting_is_counted
from longboat_graders.unenforced import unenforced

log = structlog.get_logger()

_REAP_INTERVAL = 1.0
# A child takes one here and four in its zygote; what a child closes is bounded by it, too.
_OPEN_FILES = 4096
# What the names of the graders' directories begin with.
_SCRATCH = "longboat-graders-"
# How long an answer waits for others, in seconds. Clients ask for many grades; waking one for each costs as much as a short grade.
_GATHER_SECONDS = 0.005


@dataclass(slots=True, eq=False)
class _Request:
    """A grade that a client has asked for by this id, and waits for."""

    channel: Channel
    id: int
    loaded: LoadedFunction
    grading: Grading


@dataclass(slots=True)
class _Client:
    """What a connected client waits for: functions that are being loaded, and grades by the ids of their requests."""

    loads: set[asyncio.Task[None]] = field(default_factory=set)
    grades: dict[int, _Request] = field(default_factory=dict)


# What a made function keeps is no global of a module, which is what is checked after a grade.
_FACTORY = "what a factory's function keeps between grades isn't checked"


class GraderServer:
    """Runs at most `processes` grades at once, fewer if the quota of the `cgroup` says so; others wait in the order they came.

    `scratch` is the grades' directory; `cgroup` is None if it isn't the graders' own. `missing` says what isn't enforced here besides what
    every kernel tells.
    """

    def __init__(
        self,
        processes: int,
        scratch: Path,
        config_maps: Path = Path(CONFIG_MAPS),
        cgroup: Path | None = CGROUP_ROOT,
        missing: Sequence[str] = (),
    ) -> None:
        self._processes, self._scratch, self._config_maps = processes, scratch, config_maps
        self._unenforced = [*missing, *unenforced()]
        self._quota = Quota(processes, cgroup)
        self._looking: asyncio.TimerHandle | None = None
        # The grades that run, and the subset that has run beside others.
        self._running: set[_Request] = set()
        self._ran_beside_others: set[_Request] = set()
        self._waiting: deque[_Request] = deque()
        # By the names of rewards, and their directories.
        self._loaded: dict[str, LoadedFunction] = {}
        self._directories: dict[str, Path] = {}
        self._requests: dict[str, Mapping[str, Any]] = {}
        self._clients: dict[Channel, _Client] = {}
        # Functions are replaced one at a time.
        self._replacing = asyncio.Lock()

    async def serve(self, listener: socket.socket, stop: asyncio.Event) -> None:
        """Listens until `stop` is set."""
        server = await asyncio.get_running_loop().create_unix_server(self._connected, sock=listener)
        log.info(
            "graders listen",
            socket=listener.getsockname(),
            processes=self._processes,
            at_once=self._quota.at_once,
            landlock=landlock.version(),
            waiting_is_counted=waiting_is_counted(),
        )
        for line in self._unenforced:
            log.warning("this node can't enforce all limits of graded programs", missing=line)
        reaping = asyncio.create_task(self._reap_orphans())
        try:
            await stop.wait()
        finally:
            server.close()
            for channel in list(self._clients):
                channel.close()
            for loaded in self._loaded.values():
                await loaded.close()
            reaping.cancel()

    def _connected(self) -> Channel:
        channel = Channel(self, _GATHER_SECONDS)
        self._clients[channel] = _Client()
        return channel

    def received(self, channel: Channel, message: dict[str, Any], body: bytes) -> None:
        """Follows a request of a client; see `channel.Receiver`."""
        match message["op"]:
            case "grade":
                self.grade(message, body, channel)
            case "cancel":
                self.cancel(message["id"], channel)
            case "load":
                loads = self._clients[channel].loads
                task = asyncio.get_running_loop().create_task(self._load(message, channel))
                loads.add(task)
                task.add_done_callback(loads.discard)
            case "state":
                channel.send({"id": message["id"], **self.state()})
            case op:
                channel.send({"id": message["id"], "error": f"unknown op {op!r}"})

    def lost(self, channel: Channel, reason: str) -> None:
        """Forgets a client that is gone, and ends what it has asked for; see `channel.Receiver`."""
        client = self._clients[channel]
        for task in client.loads:
            task.cancel()
        # The newest first: waiting grades are dropped before a process gets free for them.
        for identity in list(reversed(client.grades)):
            self.cancel(identity, channel)
        del self._clients[channel]

    async def _load(self, request: dict[str, Any], channel: Channel) -> None:
        channel.send({"id": request["id"], **await self.load(request)})

    async def load(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Loads a function, or another one of its name instead. The isolation asked for may be stricter than before."""
        name, wanted = request["function"]["name"], {key: request[key] for key in ("function", "field", "isolation")}
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
                loaded = self._loaded[name] = LoadedFunction(
                    request["function"],
                    request["field"],
                    self._config_maps,
                    self._directories[name],
                    self._processes,
                    RewardIsolation(request["isolation"]),
                )
                loaded.fell_back.add_done_callback(partial(self._tell_isolation, loaded))
                loaded.changed = partial(self._end_connections, name)
                self._requests[name] = wanted
            loaded = self._loaded[name]
        if reason := request.get("reason") or (_FACTORY if request["function"].get("factory") else ""):
            loaded.fall_back(reason)
        try:
            await loaded.load()
        except SpecProblem as problem:
            log.warning("a reward function can't be loaded", reward=name, problem=str(problem))
            return {"problem": list(problem.args)}
        log.info(
            "a reward function is loaded",
            reward=name,
            isolation=str(loaded.isolation),
            large_modules=dict(loaded.footprint["modules"]),
            memory_mib=loaded.footprint["resident"] >> 20,
            fork_ms=round(1e3 * loaded.footprint["fork"], 2),
        )
        in_force = {"isolation": loaded.isolation, "reason": loaded.reason, "footprint": loaded.footprint}
        made_of = {"token_ids": loaded.token_ids, "sources": loaded.sources}
        return {"problem": None, **in_force, **made_of, **self._capacity}

    def grade(self, message: Mapping[str, Any], sample: bytes, channel: Channel) -> None:
        """Answers by `channel`, now or later."""
        loaded = self._loaded.get(message["reward"])
        if loaded is None:
            error = f"no reward function {message['reward']!r} is loaded here"
            _answer(channel, message["id"], FunctionOutcome(OutcomeKind.GRADER_ERROR, message=error))
            return
        timeout, own = float(message["timeout"]), message.get("own")
        grading = Grading(
            sample,
            loaded.longest_seconds(timeout),
            int(message["seed"]),
            timeout if loaded.has_cases else None,
            asyncio.get_running_loop().create_future(),
            None if own is None else float(own),
        )
        request = _Request(channel, message["id"], loaded, grading)
        grading.outcome.add_done_callback(partial(self._done, request))
        self._clients[channel].grades[request.id] = request
        self._waiting.append(request)
        if self._looking is None:
            self._follow_quota()
        self._start()

    def cancel(self, identity: int, channel: Channel) -> None:
        """Ends a grade that nobody wants any more, without an answer; one that has been answered is gone already."""
        request = self._clients[channel].grades.pop(identity, None)
        if request is None:
            return
        if request in self._waiting:
            self._waiting.remove(request)
            request.grading.outcome.cancel()
        else:
            request.loaded.cancel(request.grading)

    def state(self) -> dict[str, Any]:
        """Describes the graders for whoever asks."""
        rewards = {
            name: {
                "isolation": loaded.isolation,
                "reason": loaded.reason,
                "footprint": loaded.footprint,
                "replaced": dict(loaded.replaced),
            }
            for name, loaded in self._loaded.items()
        }
        return {
            "processes": self._processes,
            "running": len(self._running),
            "landlock": landlock.version(),
            "unenforced": self._unenforced,
            "rewards": rewards,
            **self._capacity,
        }

    @property
    def _capacity(self) -> dict[str, Any]:
        return {"at_once": self._quota.at_once, "cpu_seconds": self._quota.cpu_seconds}

    def _follow_quota(self) -> None:
        """Follows the quota from now on, until there is nothing to grade."""
        if not self._waiting and not self._running:
            self._quota.rest()
            self._looking = None
            return
        self._quota.look(bool(self._waiting) and len(self._running) >= self._quota.at_once)
        self._looking = asyncio.get_running_loop().call_later(LOOK_SECONDS, self._follow_quota)
        for channel in self._clients:
            channel.send(self._capacity)
        self._start()

    def _start(self) -> None:
        while self._waiting and len(self._running) < self._quota.at_once:
            request = self._waiting.popleft()
            self._running.add(request)
            if len(self._running) > 1:
                self._ran_beside_others |= self._running
            request.channel.send({"id": request.id, "begun": True})
            request.loaded.grade(request.grading)

    def _done(self, request: _Request, outcome: asyncio.Future[FunctionOutcome]) -> None:
        client = self._clients.get(request.channel)
        if client is not None and client.grades.pop(request.id, None) is not None:
            _answer(request.channel, request.id, blamed(outcome.result(), alone=request not in self._ran_beside_others))
        self._running.discard(request)
        self._ran_beside_others.discard(request)
        self._start()

    def _tell_isolation(self, loaded: LoadedFunction, _: object) -> None:
        for channel in self._clients:
            channel.send({"reward": loaded.name, "isolation": loaded.isolation, "reason": loaded.reason})

    def _end_connections(self, name: str) -> None:
        """Has clients load all rewards again, since one is no longer what they loaded: they decide whether they want it."""
        log.warning("a reward function has changed since it was loaded", reward=name)
        for channel in list(self._clients):
            channel.close()

    async def _reap_orphans(self) -> None:
        """Ends and reaps children of this process that aren't zygotes, such as programs of grades whose zygote died.

        Every second, until cancelled.
        """
        while True:
            await asyncio.sleep(_REAP_INTERVAL)
            zygotes = {pid for loaded in self._loaded.values() for pid in loaded.zygotes}
            for pid in set(children()).difference(zygotes):
                end_orphan(pid)


def _answer(channel: Channel, identity: int, outcome: FunctionOutcome) -> None:
    channel.send({"id": identity, "outcome": outcome.to_json()})


def blamed(outcome: FunctionOutcome, *, alone: bool) -> FunctionOutcome:
    """Returns the outcome of a grade that has ended. `alone` says that at no time was another graded beside it. Pure.

    A grade is LOST if its container was short of memory while its program crashed; it is graded again with nothing beside it. If it
    was alone already its program is the cause, and scores 0.
    """
    if outcome.kind is not OutcomeKind.LOST or not alone:
        return outcome
    return replace(
        outcome, kind=OutcomeKind.SCORED, score=0.0, message=f"{outcome.message}, with nothing graded beside it"
    )


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


async def _run(server: GraderServer, listener: socket.socket) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGTERM, signal.SIGINT))
    await server.serve(listener, stop)


def run(
    listener: socket.socket,
    scratch: Path,
    processes: int,
    config_maps: Path,
    cgroup: Path | None,
    missing: Sequence[str] = (),
) -> None:
    """Runs graders in this process until SIGTERM or SIGINT, which may be blocked until they are listened to. See GraderServer."""
    prctl.hide_memory()
    prctl.adopt_orphans()
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, allowed_limits(resource.RLIMIT_NOFILE, _OPEN_FILES, hard))
    asyncio.run(_run(GraderServer(processes, scratch, config_maps, cgroup, missing), listener))


def main(path: Path, processes: int, config_maps: Path = Path(CONFIG_MAPS), cgroup: Path | None = CGROUP_ROOT) -> None:
    """Runs the graders of a pod: `longboat graders --socket PATH --processes N`. `cgroup` is where the container's quota is read."""
    scratch, owned = scratch_directory(tempfile.gettempdir())
    try:
        run(listen(path), scratch, processes, config_maps, cgroup)
    finally:
        remove_tree(str(scratch))
        os.close(owned)
