"""A process that has imported one environment, and forks a keeper for each of its episodes.

Started by `episodes` as `python -m longboat_graders.episode_zygote FD`, as `zygote` is; what it imports is named on its standard input. It
is single-threaded, so forking is safe as long as the environment's module starts no threads when it is imported.
"""

from __future__ import annotations

import gc
import json
import os
import socket
import sys
import time
from contextlib import suppress

from longboat_crds.problems import SpecProblem
from longboat_graders.environment import load_environment
from longboat_graders.episode_messages import EnvironmentFunction
from longboat_graders.forks import Child, Forks, begin, footprint
from longboat_graders.keeper import keep, remove_directory
from longboat_graders.leftovers import sweep
from longboat_graders.process_tree import children, end_orphan
from longboat_graders.seccomp import Filter, can_ask, starts_program

TYPE_CHECKING = False  # `typing` itself would be in the memory of every episode
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from longboat_graders.environment import Play

# How long threads that the rehearsal has started may take to end, in seconds.
_THREADS_SECONDS = 5.0
# How long keepers have to end their episodes once the server has closed its end: less than the server waits for this process.
_KEEPERS_SECONDS, _REAP_SECONDS = 4.0, 0.02


class _Episode(Child):
    __slots__ = ("directory",)

    def __init__(self, number: int, pid: int, directory: str) -> None:
        super().__init__(number, pid)
        self.directory = directory


class EpisodeZygote(Forks):
    """The loop of an environment's zygote. `scratch` is its directory, in which each episode has one."""

    def __init__(self, control: socket.socket, play: Play, scratch: str) -> None:
        super().__init__(control)
        self._play, self._scratch = play, scratch
        self._starts = Filter(starts_program(os.uname().machine)) if can_ask() else None

    def _forked(self, number: int, server: int, command: Mapping[str, Any]) -> Child:
        directory, zygote = f"{self._scratch}/{os.urandom(16).hex()}", os.getpid()
        pid = os.fork()
        if pid == 0:
            keep(server, self._play, directory, self._starts, zygote)
        return _Episode(number, pid, directory)

    def _removed(self, child: _Episode) -> bool:
        # What is left if the keeper itself was killed.
        if not self._end_strangers():
            return False
        remove_directory(child.directory)
        return True

    def _end_all(self) -> None:
        """Waits for keepers, whose connections to the server have ended too: they end their episodes. Then ends what is left."""
        deadline = time.monotonic() + _KEEPERS_SECONDS
        while children() and time.monotonic() < deadline:
            with suppress(ChildProcessError):
                while os.waitpid(-1, os.WNOHANG)[0]:
                    continue
            time.sleep(_REAP_SECONDS)
        while pids := children():
            for pid in pids:
                end_orphan(pid)
            time.sleep(_REAP_SECONDS)


def rehearse() -> None:
    """Makes a request of a server of its own: what a client imports and keeps at its first request, all episodes share."""
    import asyncio

    from longboat_graders.environment import Model

    choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": ""}}
    answer = json.dumps({"id": "", "object": "chat.completion", "created": 0, "model": "", "choices": [choice]})
    response = f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {len(answer)}\r\n\r\n{answer}"

    async def respond(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        headers = await reader.readuntil(b"\r\n\r\n")
        length = next(line for line in headers.lower().split(b"\r\n") if line.startswith(b"content-length:"))
        await reader.readexactly(int(length.partition(b":")[2]))
        writer.write(response.encode())
        await writer.drain()
        writer.close()

    async def ask() -> None:
        async with await asyncio.start_server(respond, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            async with Model(f"http://127.0.0.1:{port}/v1", "", "none").client() as client:
                reply = await client.chat.completions.create(model="", messages=[{"role": "user", "content": ""}])
                reply.choices[0].message.model_dump(exclude_none=True)

    asyncio.run(ask())
    deadline = time.monotonic() + _THREADS_SECONDS
    while len(os.listdir("/proc/self/task")) > 1 and time.monotonic() < deadline:
        time.sleep(0.001)


def main(fd: int) -> None:
    """Reads the request to load an environment, answers, and forks."""
    control, request = begin(fd)
    function = EnvironmentFunction.from_json(request["function"])
    try:
        play = load_environment(function, request["field"], request["config_maps"])
    except SpecProblem as problem:
        control.sendall(json.dumps([{"problem": list(problem.args)}]).encode())
        return
    rehearse()
    sweep(request["scratch"])
    sys.stdout.flush()
    sys.stderr.flush()
    gc.collect()
    gc.freeze()
    loaded = {**footprint(), "threads": len(os.listdir("/proc/self/task"))}
    control.sendall(json.dumps([{"loaded": loaded}]).encode())
    EpisodeZygote(control, play, request["scratch"]).run()


if __name__ == "__main__":
    main(int(sys.argv[1]))
