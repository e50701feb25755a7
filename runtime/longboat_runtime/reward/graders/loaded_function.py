"""A reward function, loaded and ready to be called: its zygote's process, and the requests in flight there."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import structlog

from longboat_crds.reasons import Reason
from longboat_runtime.problems import SpecProblem
from longboat_runtime.reward.graders.frames import FrameBuffer, FrameError, encode
from longboat_runtime.reward.result import FunctionOutcome, OutcomeKind

log = structlog.get_logger()

# Importing a function may read large libraries from a slow volume.
LOAD_SECONDS = 120.0
# A zygote that hasn't answered so long after a grade's own timeout is stuck.
STUCK_SECONDS = 15.0


class LoadedFunction:
    """Starts a zygote for `function` (JSON of a RewardFunction) when it is first needed, and again if it has died.

    `zygotes` holds the process ids of running zygotes and is kept up to date.
    """

    def __init__(
        self, function: Mapping[str, Any], field: str, config_maps: Path, scratch: Path, zygotes: set[int]
    ) -> None:
        self._load_request = {
            "function": dict(function),
            "field": field,
            "config_maps": str(config_maps),
            "scratch": str(scratch),
        }
        self._field = field
        self._zygotes = zygotes
        self._starting = asyncio.Lock()
        self._zygote: _Zygote | None = None

    async def load(self) -> None:
        """Imports the function. Raises SpecProblem if it can't be loaded."""
        async with self._starting:
            if self._zygote is not None and self._zygote.dead:
                await self._zygote.close()
                self._zygote = None
            if self._zygote is None:
                self._zygote = await self._start()

    async def grade(self, sample: Mapping[str, Any], timeout: float) -> FunctionOutcome:  # noqa: ASYNC109 - the grade's, not the call's
        """One grade; `sample` has the fields of RewardSample, `timeout` is in seconds."""
        await self.load()
        assert self._zygote is not None
        return await self._zygote.grade(sample, timeout)

    async def close(self) -> None:
        """Ends the zygote and all its grades."""
        async with self._starting:
            if self._zygote is not None:
                await self._zygote.close()
                self._zygote = None

    async def _start(self) -> _Zygote:
        zygote = await _Zygote.start(self._zygotes)
        zygote.send(self._load_request)
        try:
            answer = await asyncio.wait_for(zygote.loaded, LOAD_SECONDS)
        except TimeoutError:
            await zygote.close()
            raise SpecProblem(
                Reason.REWARD_FUNCTION_INVALID,
                self._field,
                f"Importing it takes more than {LOAD_SECONDS:g} s. Load less when the module is imported.",
            ) from None
        if answer is None:
            code = await zygote.close()
            raise SpecProblem(
                Reason.REWARD_FUNCTION_INVALID,
                self._field,
                f"The process that imports it ends with code {code} (negative: "
                "signal). The graders' log has its output.",
            )
        if "problem" in answer:
            await zygote.close()
            raise SpecProblem(*answer["problem"])
        return zygote


class _Zygote:
    """A running zygote and its end of the socket pair."""

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        zygotes: set[int],
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        self._process, self._zygotes, self._reader, self._writer = process, zygotes, reader, writer
        self._next_id = 0
        self._waiting: dict[int, asyncio.Future[FunctionOutcome]] = {}
        # Its answer to the request to load; None if it ended instead.
        self.loaded: asyncio.Future[dict[str, Any] | None] = asyncio.get_running_loop().create_future()
        self._listening = asyncio.create_task(self._listen())

    @classmethod
    async def start(cls, zygotes: set[int]) -> _Zygote:
        ours, theirs = socket.socketpair()
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        with theirs:
            process = subprocess.Popen(  # noqa: ASYNC220 - returns as soon as the program runs
                [sys.executable, "-m", "longboat_runtime.reward.graders.zygote", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                env=environment,
            )
        zygotes.add(process.pid)
        return cls(process, zygotes, *await asyncio.open_connection(sock=ours))

    @property
    def dead(self) -> bool:
        return self._listening.done()

    def send(self, message: Mapping[str, Any]) -> None:
        self._writer.write(encode(message))

    async def grade(self, sample: Mapping[str, Any], seconds: float) -> FunctionOutcome:
        self._next_id += 1
        identity = self._next_id
        future = self._waiting[identity] = asyncio.get_running_loop().create_future()
        self.send({"id": identity, "sample": dict(sample), "timeout": seconds})
        try:
            return await asyncio.wait_for(future, seconds + STUCK_SECONDS)
        except TimeoutError:
            self._process.kill()
            return FunctionOutcome(OutcomeKind.GRADER_ERROR, message="the grader's process is stuck and was replaced")
        finally:
            self._waiting.pop(identity, None)

    async def _listen(self) -> None:
        buffer = FrameBuffer()
        try:
            while data := await self._reader.read(2**20):
                for message in buffer.feed(data):
                    self._take(message)
        except (ConnectionError, FrameError) as error:
            log.warning("a zygote is lost", pid=self._process.pid, error=str(error))
        finally:
            if not self.loaded.done():
                self.loaded.set_result(None)
            lost = FunctionOutcome(OutcomeKind.GRADER_ERROR, message="the grader's process died")
            for future in self._waiting.values():
                if not future.done():
                    future.set_result(lost)

    def _take(self, message: dict[str, Any]) -> None:
        if not self.loaded.done():
            self.loaded.set_result(message)
            return
        future = self._waiting.get(message["id"])
        if future is not None and not future.done():
            future.set_result(FunctionOutcome.from_json(message["outcome"]))

    async def close(self) -> int:
        """Ends it and returns its exit code (negative: signal)."""
        self._writer.close()
        with suppress(ConnectionError):
            await self._writer.wait_closed()
        try:
            code = await asyncio.wait_for(asyncio.to_thread(self._process.wait), 5)
        except TimeoutError:
            self._process.kill()
            code = await asyncio.to_thread(self._process.wait)
        self._zygotes.discard(self._process.pid)
        await self._listening
        return code
