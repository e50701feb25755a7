"""The graders' Unix socket: what a reward worker asks, and how many grades run at once.

Requests are {id, op, ...}; each is answered by {id, ...}:
    load  {function, field}                   -> {problem: null | [reason, field, message, fatal]}
    grade {reward: name, sample, timeout}     -> {outcome}
    state {}                                  -> {processes, running, landlock}
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import structlog

from longboat_runtime import prctl
from longboat_runtime.problems import SpecProblem
from longboat_runtime.reward.function import CONFIG_MAPS
from longboat_runtime.reward.graders import landlock
from longboat_runtime.reward.graders.frames import FrameBuffer, FrameError, encode
from longboat_runtime.reward.graders.leftovers import reap_orphans, remove_tree
from longboat_runtime.reward.graders.loaded_function import LoadedFunction
from longboat_runtime.reward.result import FunctionOutcome, OutcomeKind

log = structlog.get_logger()


class GraderServer:
    """At most `processes` grades run at once; others wait in the order they came. `scratch` is the grades' directory."""

    def __init__(self, processes: int, scratch: Path, config_maps: Path = CONFIG_MAPS) -> None:
        self._processes, self._scratch, self._config_maps = processes, scratch, config_maps
        self._free = asyncio.Semaphore(processes)
        self._running = 0
        self._loaded: dict[str, LoadedFunction] = {}
        self._functions: dict[str, Mapping[str, Any]] = {}
        self._connections: set[asyncio.Task[Any]] = set()
        # Zygotes: the children of this process that aren't orphans.
        self.zygotes: set[int] = set()

    async def serve(self, path: Path, stop: asyncio.Event) -> None:
        """Listens at `path` until `stop` is set. The socket is open to the directory's group."""
        listener = _listen(path)
        server = await asyncio.start_unix_server(self._connection, sock=listener)
        log.info("graders listen", socket=str(path), processes=self._processes, landlock=landlock.version())
        try:
            await stop.wait()
        finally:
            server.close()
            for connection in list(self._connections):
                connection.cancel()
            for loaded in self._loaded.values():
                await loaded.close()

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        buffer = FrameBuffer()
        tasks: set[asyncio.Task[None]] = set()
        connection = asyncio.current_task()
        assert connection is not None
        self._connections.add(connection)
        try:
            while data := await reader.read(2**20):
                for request in buffer.feed(data):
                    task = asyncio.create_task(self._answer(request, writer))
                    tasks.add(task)
                    task.add_done_callback(tasks.discard)
        except (ConnectionError, FrameError) as error:
            log.warning("a connection is dropped", error=str(error))
        finally:
            # Whoever asked is gone, and no longer wants what it asked for.
            for task in tasks:
                task.cancel()
            writer.close()
            self._connections.discard(connection)

    async def _answer(self, request: Mapping[str, Any], writer: asyncio.StreamWriter) -> None:
        match request["op"]:
            case "load":
                answer = await self._load(request["function"], request["field"])
            case "grade":
                answer = await self._grade(request)
            case "state":
                answer = {"processes": self._processes, "running": self._running, "landlock": landlock.version()}
            case op:
                answer = {"error": f"unknown op {op!r}"}
        with contextlib.suppress(ConnectionError):
            writer.write(encode({"id": request["id"], **answer}))
            await writer.drain()

    async def _load(self, function: Mapping[str, Any], field: str) -> dict[str, Any]:
        name = function["name"]
        if self._functions.get(name) != function:
            if name in self._loaded:
                await self._loaded.pop(name).close()
            scratch = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=self._scratch))
            self._loaded[name] = LoadedFunction(function, field, self._config_maps, scratch, self.zygotes)
            self._functions[name] = dict(function)
        try:
            await self._loaded[name].load()
        except SpecProblem as problem:
            log.warning("a reward function can't be loaded", reward=name, problem=str(problem))
            return {"problem": list(problem.args)}
        return {"problem": None}

    async def _grade(self, request: Mapping[str, Any]) -> dict[str, Any]:
        loaded = self._loaded.get(request["reward"])
        if loaded is None:
            outcome = FunctionOutcome(
                OutcomeKind.GRADER_ERROR, message=f"no reward function {request['reward']!r} is loaded here"
            )
            return {"outcome": outcome.to_json()}
        async with self._free:
            self._running += 1
            try:
                outcome = await loaded.grade(request["sample"], request["timeout"])
            except SpecProblem as problem:
                outcome = FunctionOutcome(OutcomeKind.GRADER_ERROR, message=str(problem))
            finally:
                self._running -= 1
        return {"outcome": outcome.to_json()}


def _listen(path: Path) -> socket.socket:
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX)
    mask = os.umask(0o007)
    try:
        listener.bind(str(path))
    finally:
        os.umask(mask)
    return listener


async def _run(path: Path, processes: int, config_maps: Path) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    scratch = Path(tempfile.mkdtemp(prefix="longboat-graders-"))
    server = GraderServer(processes, scratch, config_maps)
    reaping = asyncio.create_task(reap_orphans(server.zygotes))
    try:
        await server.serve(path, stop)
    finally:
        reaping.cancel()
        remove_tree(scratch)


def main(path: Path, processes: int, config_maps: Path = CONFIG_MAPS) -> None:
    """Runs until SIGTERM: `longboat graders --socket PATH --processes N`."""
    prctl.hide_memory()
    prctl.adopt_orphans()
    asyncio.run(_run(path, processes, config_maps))
