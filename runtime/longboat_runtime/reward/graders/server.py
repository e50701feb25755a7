"""The graders' Unix socket: what a reward worker asks, and how many grades run at once.

Requests are {id, op, ...}; each is answered by {id, ...}:
    load  {function, field, isolation, reason}    -> {problem: null, isolation, reason, footprint}, capacity,
                                                     or {problem: [reason, field, message, fatal]}
    grade {reward: name, timeout, seed, own} + sample  -> {outcome}; `own` is a learned limit of own seconds, or isn't there
    state {}                                      -> {processes, running, landlock, unenforced, rewards: {name: ...}}, capacity
A grade that nobody wants any more is ended by {id, op: cancel} with its id; neither is answered then.
That a grade begins is told by {id, begun}: should these graders end, it may be the cause.
A reward that falls back to PerGrade is told of without being asked: {reward, isolation, reason}; and, every so often while there is
something to grade, the capacity: {at_once, cpu_seconds}, see `quota.Quota`.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import signal
import socket
import tempfile
from collections import deque
from collections.abc import Collection, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import structlog

from longboat_crds.reward_kinds import RewardIsolation
from longboat_runtime import prctl
from longboat_runtime.cgroup import CGROUP_ROOT
from longboat_runtime.problems import SpecProblem
from longboat_runtime.reward.function import CONFIG_MAPS
from longboat_runtime.reward.graders import landlock
from longboat_runtime.reward.graders.channel import Channel
from longboat_runtime.reward.graders.leftovers import remove_tree
from longboat_runtime.reward.graders.loaded_function import LoadedFunction
from longboat_runtime.reward.graders.process_tree import children
from longboat_runtime.reward.graders.quota import LOOK_SECONDS, Quota
from longboat_runtime.reward.graders.supervised import Grading
from longboat_runtime.reward.graders.times import waiting_is_counted
from longboat_runtime.reward.graders.unenforced import unenforced
from longboat_runtime.reward.result import FunctionOutcome, OutcomeKind

log = structlog.get_logger()

_REAP_INTERVAL = 1.0
# What the names of the graders' directories begin with.
_SCRATCH = "longboat-graders-"
# How long an answer waits for others, in seconds. Clients ask for many grades; waking one for each costs as much as a short grade.
_GATHER_SECONDS = 0.005


class GraderServer:
    """Runs at most `processes` grades at once, fewer if the quota of the `cgroup` says so; others wait in the order they came.

    `scratch` is the grades' directory.
    """

    def __init__(
        self,
        processes: int,
        scratch: Path,
        config_maps: Path = Path(CONFIG_MAPS),
        cgroup: Path | None = CGROUP_ROOT,
    ) -> None:
        self._processes, self._scratch, self._config_maps = processes, scratch, config_maps
        self._quota = Quota(processes, cgroup)
        self._looking: asyncio.TimerHandle | None = None
        # The grades that run, and the subset that has run beside others.
        self._running: set[Grading] = set()
        self._ran_beside_others: set[Grading] = set()
        self._waiting: deque[tuple[LoadedFunction, Grading]] = deque()
        # By the names of rewards, and their directories.
        self._loaded: dict[str, LoadedFunction] = {}
        self._directories: dict[str, Path] = {}
        self._requests: dict[str, Mapping[str, Any]] = {}
        self._connections: set[_Connection] = set()
        # Zygotes: the children of this process that aren't orphans.
        self.zygotes: set[int] = set()

    async def serve(self, path: Path, stop: asyncio.Event) -> None:
        """Listens at `path` until `stop` is set. The socket is open to the directory's group."""
        listener = _listen(path)
        server = await asyncio.get_running_loop().create_unix_server(self._connected, sock=listener)
        log.info(
            "graders listen",
            socket=str(path),
            processes=self._processes,
            at_once=self._quota.at_once,
            landlock=landlock.version(),
            waiting_is_counted=waiting_is_counted(),
        )
        for line in unenforced():
            log.warning("this node can't enforce all limits of graded programs", missing=line)
        try:
            await stop.wait()
        finally:
            server.close()
            for connection in list(self._connections):
                connection.channel.close()
            for loaded in self._loaded.values():
                await loaded.close()

    def _connected(self) -> Channel:
        connection = _Connection(self)
        self._connections.add(connection)
        return connection.channel

    def disconnected(self, connection: _Connection) -> None:
        """Forgets a connection that is gone, and ends the grades that it asked for."""
        self._connections.discard(connection)
        # The newest first: waiting grades are dropped before a process gets free for them.
        for identity in list(reversed(connection.waiting)):
            self.cancel(identity, connection)

    async def load(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Loads a function, or another one of its name instead. The isolation asked for may be stricter than before."""
        name, wanted = request["function"]["name"], {key: request[key] for key in ("function", "field", "isolation")}
        if self._requests.get(name) != wanted:
            if name in self._loaded:
                await self._loaded.pop(name).close()
                with contextlib.suppress(OSError):
                    remove_tree(str(self._directories[name]))
            self._directories[name] = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=self._scratch))
            self._loaded[name] = LoadedFunction(
                request["function"],
                request["field"],
                self._config_maps,
                self._directories[name],
                self.zygotes,
                self._processes,
                RewardIsolation(request["isolation"]),
                self._fell_back,
            )
            self._requests[name] = wanted
        loaded = self._loaded[name]
        if request.get("reason"):
            loaded.fall_back(request["reason"])
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
        return {"problem": None, **in_force, **self._capacity}

    def grade(self, request: Mapping[str, Any], sample: bytes, connection: _Connection) -> None:
        """Answers by `connection`, now or later."""
        answer = partial(self._answer, connection, request["id"])
        loaded = self._loaded.get(request["reward"])
        if loaded is None:
            message = f"no reward function {request['reward']!r} is loaded here"
            answer(FunctionOutcome(OutcomeKind.GRADER_ERROR, message=message))
            return
        timeout, own = float(request["timeout"]), request.get("own")
        begun = partial(connection.channel.send, {"id": request["id"], "begun": True})
        grading = Grading(
            sample,
            loaded.longest_seconds(timeout),
            int(request["seed"]),
            answer,
            timeout if loaded.has_cases else None,
            begun,
            None if own is None else float(own),
        )
        grading.done = partial(self._done, connection, request["id"], grading, answer)
        connection.waiting[request["id"]] = loaded, grading
        self._waiting.append((loaded, grading))
        if self._looking is None:
            self._follow_quota()
        self._start()

    def cancel(self, identity: int, connection: _Connection) -> None:
        """Ends a grade that nobody wants any more, without an answer; one that has been answered is gone already."""
        waiting = connection.waiting.pop(identity, None)
        if waiting is None:
            return
        if waiting in self._waiting:
            self._waiting.remove(waiting)
            return
        loaded, grading = waiting
        loaded.cancel(grading)
        self._ended(grading)
        self._start()

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
            "unenforced": unenforced(),
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
        for connection in self._connections:
            connection.channel.send(self._capacity)
        self._start()

    def _start(self) -> None:
        while self._waiting and len(self._running) < self._quota.at_once:
            loaded, grading = self._waiting.popleft()
            self._running.add(grading)
            if len(self._running) > 1:
                self._ran_beside_others |= self._running
            grading.begun()
            loaded.grade(grading)

    def _done(
        self, connection: _Connection, identity: int, grading: Grading, answer: Any, outcome: FunctionOutcome
    ) -> None:
        connection.waiting.pop(identity, None)
        answer(blamed(outcome, alone=grading not in self._ran_beside_others))
        self._ended(grading)
        self._start()

    def _ended(self, grading: Grading) -> None:
        self._running.discard(grading)
        self._ran_beside_others.discard(grading)

    def _answer(self, connection: _Connection, identity: int, outcome: FunctionOutcome) -> None:
        connection.channel.send({"id": identity, "outcome": outcome.to_json()})

    def _fell_back(self, loaded: LoadedFunction) -> None:
        for connection in self._connections:
            message = {"reward": loaded.name, "isolation": loaded.isolation, "reason": loaded.reason}
            connection.channel.send(message)


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


class _Connection:
    """A client that is connected, and the grades that it waits for, by the ids of their requests."""

    def __init__(self, server: GraderServer) -> None:
        self._server = server
        self.channel = Channel(self._receive, self._lost, _GATHER_SECONDS)
        self.waiting: dict[int, tuple[LoadedFunction, Grading]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def _receive(self, request: dict[str, Any], body: bytes) -> None:
        match request["op"]:
            case "grade":
                self._server.grade(request, body, self)
            case "cancel":
                self._server.cancel(request["id"], self)
            case "load":
                task = asyncio.get_running_loop().create_task(self._load(request))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
            case "state":
                self.channel.send({"id": request["id"], **self._server.state()})
            case op:
                self.channel.send({"id": request["id"], "error": f"unknown op {op!r}"})

    async def _load(self, request: dict[str, Any]) -> None:
        self.channel.send({"id": request["id"], **await self._server.load(request)})

    def _lost(self, reason: str) -> None:
        for task in self._tasks:
            task.cancel()
        self._server.disconnected(self)


async def reap_orphans(expected: Collection[int]) -> None:
    """Kills and reaps children of this process that aren't `expected`, such as programs of grades whose zygote died.

    Every second, until cancelled.
    """
    while True:
        await asyncio.sleep(_REAP_INTERVAL)
        for pid in set(children()).difference(expected):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            # If it hasn't ended by now, the next round reaps it.
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)  # noqa: ASYNC222 - it doesn't wait


def _listen(path: Path) -> socket.socket:
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
    """Removes it unless its graders run; then, or if it can't be removed, raises OSError."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        remove_tree(directory)
    finally:
        os.close(descriptor)


async def _run(path: Path, processes: int, config_maps: Path, cgroup: Path | None) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    scratch, owned = scratch_directory(tempfile.gettempdir())
    server = GraderServer(processes, scratch, config_maps, cgroup)
    reaping = asyncio.create_task(reap_orphans(server.zygotes))
    try:
        await server.serve(path, stop)
    finally:
        reaping.cancel()
        remove_tree(str(scratch))
        os.close(owned)


def main(path: Path, processes: int, config_maps: Path = Path(CONFIG_MAPS), cgroup: Path | None = CGROUP_ROOT) -> None:
    """Runs until SIGTERM or SIGINT: `longboat graders --socket PATH --processes N`.

    `cgroup` is where the container's quota is read; None if the cgroup isn't the graders' own.
    """
    prctl.hide_memory()
    prctl.adopt_orphans()
    asyncio.run(_run(path, processes, config_maps, cgroup))
