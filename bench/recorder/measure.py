"""Measures the CPU seconds of a turn on all sides but the engine: client, environment and recorder together, in one process.

Many episodes of a tool game run at once, each as one conversation that grows. Takes about a minute.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np

from bench.record import Recorder as Results
from longboat_graders.environment import Model
from longboat_runtime.recorder.server import Bounds, Endpoint, Recorder
from longboat_runtime.samples import FinishReason, VersionSpan
from longboat_runtime.trajectories import trajectory
from longboat_runtime.turns import TurnReply, TurnRequest
from tests.recorder.world import MODEL, TOOLS, contexts_of, launch_of, says, tokenizer_of

TEMPLATES = ("llama3_1", "qwen3", "gptoss")
_CALL = {"type": "function", "function": {"name": "look", "arguments": '{"x": "north"}'}}


class _Canned:
    """Replies with the same call of a tool, without computing anything."""

    def __init__(self, template: str) -> None:
        ids = tokenizer_of(template)("look north, as the last words said. " * 5)["input_ids"]
        self._ids, self._logprobs = np.asarray(ids, np.int32), np.zeros(len(ids), np.float32)

    async def turn(self, request: TurnRequest) -> TurnReply:
        spans = (VersionSpan(0, 0, len(self._ids)),)
        message = {"role": "assistant", "content": None, "tool_calls": [_CALL]}
        return TurnReply(self._ids, self._logprobs, spans, FinishReason.LENGTH, "look north", message)


Ask = Callable[[list[Any]], Awaitable[dict[str, Any]]]


async def _play(ask: Ask, turns: int) -> None:
    messages: list[Any] = [says("system", "You are in a maze. " * 20), says("user", "Find the way out.")]
    for number in range(turns):
        reply = await ask(messages)
        [call] = reply["tool_calls"]
        result = says("tool", f"A wall, {number} steps ahead. " * 5, tool_call_id=call["id"])
        messages += [reply, result]


async def _with_openai(endpoint: Endpoint, turns: int) -> None:
    async with Model(endpoint.url, MODEL, endpoint.secret).client() as model:

        async def ask(messages: list[Any]) -> dict[str, Any]:
            tools: Any = TOOLS
            reply = await model.chat.completions.create(model=MODEL, messages=messages, tools=tools)
            return reply.choices[0].message.model_dump(exclude_none=True)

        await _play(ask, turns)


async def _with_aiohttp(endpoint: Endpoint, turns: int) -> None:
    async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {endpoint.secret}"}) as session:

        async def ask(messages: list[Any]) -> dict[str, Any]:
            body = {"model": MODEL, "messages": messages, "tools": TOOLS}
            async with session.post(f"{endpoint.url}/chat/completions", data=json.dumps(body)) as response:
                message: dict[str, Any] = (await response.json())["choices"][0]["message"]
                return message

        await _play(ask, turns)


CLIENTS = {"openai": _with_openai, "aiohttp": _with_aiohttp}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `make bench NAME=recorder`."""
    parser.add_argument("--episodes", type=int, default=50)
    parser.add_argument("--turns", type=int, nargs="*", default=[5, 20, 60])


def run(arguments: argparse.Namespace, path: Path) -> None:
    """Plays all episodes with each client, template and number of turns. Appends the results to `path`."""
    results = Results(path, episodes=arguments.episodes)
    for template in TEMPLATES:
        for turns in arguments.turns:
            for client in CLIENTS:
                asyncio.run(_measure(results, template, turns, client, arguments.episodes))
    results.close()


async def _measure(results: Results, template: str, turns: int, client: str, episodes: int) -> None:
    recorder = Recorder(_Canned(template), contexts_of(template), MODEL, Bounds())
    await recorder.start()
    await CLIENTS[client](recorder.open(launch_of()), 2)  # imports, and compiles the template
    endpoints = [recorder.open(launch_of(seed=number)) for number in range(episodes)]
    cpu, wall = time.process_time(), time.monotonic()
    await asyncio.gather(*(CLIENTS[client](endpoint, turns) for endpoint in endpoints))
    cpu, wall = time.process_time() - cpu, time.monotonic() - wall
    recordings = [recorder.close(endpoint).recording for endpoint in endpoints]
    await recorder.stop()
    results.write(
        "played",
        template=template,
        client=client,
        turns=turns,
        delivered=sum(len(recording.turns) for recording in recordings),
        segments=sum(len(trajectory(recording.turns).segments) for recording in recordings),
        tokens=sum(len(turn.context) + len(turn.token_ids) for turn in recordings[0].turns),
        cpu_seconds=cpu,
        wall_seconds=wall,
    )
