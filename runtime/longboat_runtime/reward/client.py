"""A connection to the graders of this pod."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from longboat_crds.rewards import RewardSpec
from longboat_runtime.problems import SpecProblem
from longboat_runtime.reward.function import RewardFunction
from longboat_runtime.reward.graders.frames import FrameBuffer, FrameError, encode
from longboat_runtime.reward.result import FunctionOutcome, OutcomeKind, RewardSample

# Where the reward pod's two containers meet.
SOCKET = Path("/run/longboat/graders.sock")
# The graders' container may start later than the worker, or restart; in seconds.
CONNECT_SECONDS = 60.0
_RETRY_INTERVAL = 0.2


class GradersGone(ConnectionError):
    """The graders can't be reached, or went away before they answered."""


class GraderClient:
    """Asks graders over their Unix socket, many requests at a time. A lost connection is reopened by the next request."""

    def __init__(self, path: Path = SOCKET) -> None:
        self._path = path
        self._connecting = asyncio.Lock()
        self._writer: asyncio.StreamWriter | None = None
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._next_id = 0
        # Loaded again when graders have restarted.
        self._loaded: dict[str, tuple[RewardSpec, str]] = {}
        self._listening: asyncio.Task[None] | None = None

    async def load(self, reward: RewardSpec, field: str) -> SpecProblem | None:
        """Loads the function; `field` is the spec path of `reward`. Raises GradersGone."""
        await self._connect()
        problem = await self._load(reward, field)
        if problem is None:
            self._loaded[reward.name] = (reward, field)
        return problem

    async def grade(self, reward: str, sample: RewardSample, seconds: float, seed: int) -> FunctionOutcome:
        """One function on one sample; a lost connection is a grader error. `seconds` is the grade's timeout."""
        try:
            await self._connect()
            answer = await self._ask(
                {"op": "grade", "reward": reward, "sample": asdict(sample), "timeout": seconds, "seed": seed}
            )
        except GradersGone as error:
            return FunctionOutcome(OutcomeKind.GRADER_ERROR, message=str(error))
        except FrameError as error:
            return FunctionOutcome(
                OutcomeKind.GRADER_ERROR, message=f"the sample can't be sent to the graders: {error}"
            )
        return FunctionOutcome.from_json(answer["outcome"])

    async def state(self) -> Mapping[str, Any]:
        """`processes`, `running`, `landlock` (version, 0 for none). Raises GradersGone."""
        await self._connect()
        return await self._ask({"op": "state"})

    async def close(self) -> None:
        """Closes the connection; requests under way are given up."""
        if self._writer is not None:
            self._writer.close()
        if self._listening is not None:
            await self._listening

    async def _connect(self) -> None:
        async with self._connecting:
            if self._listening is not None and not self._listening.done():
                return
            reader, self._writer = await self._open()
            self._listening = asyncio.create_task(self._listen(reader))
            for reward, field in self._loaded.values():
                problem = await self._load(reward, field)
                if problem is not None:
                    self._writer.close()
                    raise GradersGone(f"graders have restarted and no longer load {reward.name!r}: {problem}")

    async def _open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        deadline = asyncio.get_running_loop().time() + CONNECT_SECONDS
        while True:
            try:
                return await asyncio.open_unix_connection(str(self._path))
            except OSError as error:
                if asyncio.get_running_loop().time() >= deadline:
                    raise GradersGone(f"no graders at {self._path} for {CONNECT_SECONDS:g} s ({error})") from error
            await asyncio.sleep(_RETRY_INTERVAL)

    async def _load(self, reward: RewardSpec, field: str) -> SpecProblem | None:
        answer = await self._ask({"op": "load", "function": RewardFunction.of(reward).to_json(), "field": field})
        return SpecProblem(*answer["problem"]) if answer["problem"] is not None else None

    async def _ask(self, request: Mapping[str, Any]) -> dict[str, Any]:
        if self._writer is None or self._listening is None or self._listening.done():
            raise GradersGone("the connection to the graders is closed")
        self._next_id += 1
        identity = self._next_id
        frame = encode({"id": identity, **request})
        future = self._waiting[identity] = asyncio.get_running_loop().create_future()
        try:
            self._writer.write(frame)
            return await future
        finally:
            self._waiting.pop(identity, None)

    async def _listen(self, reader: asyncio.StreamReader) -> None:
        buffer = FrameBuffer()
        reason = "the graders closed the connection"
        try:
            while data := await reader.read(2**20):
                for message in buffer.feed(data):
                    future = self._waiting.get(message["id"])
                    if future is not None and not future.done():
                        future.set_result(message)
        except (ConnectionError, FrameError) as error:
            reason = f"the connection to the graders broke: {error}"
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(GradersGone(reason))
