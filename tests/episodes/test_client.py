"""The client of environments, against a server of the test's own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from longboat_graders.channel import Channel
from longboat_graders.episode_messages import EnvironmentFunction, EpisodeBounds, EpisodeEnd, EpisodeResult, Launch
from longboat_runtime.episodes.client import EpisodeClient
from tests.episodes.conftest import open_directory
from tests.support.waiting import eventually_async

GAME = EnvironmentFunction("game", "games:play", None)
LAUNCH = Launch("http://127.0.0.1:1/v1", "secret", "policy", 7, EpisodeBounds(1, 1, 1, 1.0))


class Server:
    """Plays every episode at once; it loads environments once it `may_load`."""

    def __init__(self) -> None:
        self.ops: list[str] = []
        self.may_load = asyncio.Event()
        self.may_load.set()
        self._channels: list[Channel] = []
        self._loads: set[asyncio.Task[None]] = set()

    async def listen(self, path: Path) -> asyncio.Server:
        return await asyncio.get_running_loop().create_unix_server(lambda: Channel(self), str(path))

    def received(self, channel: Channel, message: dict[str, Any], body: bytes) -> None:
        del body
        self.ops.append(message["op"])
        self._channels.append(channel)
        if message["op"] == "load":
            self._loads.add(asyncio.create_task(self._load(channel, message["id"])))
        else:
            channel.send({"id": message["id"], "result": EpisodeResult(EpisodeEnd.FINISHED, 1.0).to_json()})

    def lost(self, channel: Channel, reason: str) -> None:
        """Does nothing."""

    def hang_up(self) -> None:
        for channel in self._channels:
            channel.close()

    async def _load(self, channel: Channel, identity: int) -> None:
        await self.may_load.wait()
        channel.send({"id": identity, "problem": None})


@asynccontextmanager
async def loading_again() -> AsyncIterator[tuple[Server, EpisodeClient, asyncio.Task[EpisodeResult]]]:
    """An episode that waits until a server which has restarted has loaded its environment again."""
    with open_directory() as directory:
        server, path = Server(), directory / "socket"
        async with await server.listen(path):
            client = EpisodeClient(path)
            assert await client.load(GAME, "spec.environments[0]") is None
            server.hang_up()
            await eventually_async(lambda: not client.connected)
            server.may_load.clear()
            play = asyncio.create_task(client.play("first", "game", {}, LAUNCH))
            await eventually_async(lambda: server.ops == ["load", "load"])
            yield server, client, play
            await client.close()


async def test_what_begins_while_environments_are_loaded_again_waits_for_that() -> None:
    async with loading_again() as (server, client, first):
        second = asyncio.create_task(client.play("second", "game", {}, LAUNCH))
        await asyncio.sleep(0)
        await client.ask({"op": "state"})  # what was sent before has arrived
        assert server.ops == ["load", "load", "state"]
        server.may_load.set()
        assert [result.reward for result in await asyncio.gather(first, second)] == [1.0, 1.0]


async def test_after_a_call_that_is_cancelled_while_environments_are_loaded_again_the_next_one_loads_them() -> None:
    async with loading_again() as (server, client, first):
        first.cancel()
        await asyncio.wait({first})
        server.may_load.set()
        assert (await client.play("second", "game", {}, LAUNCH)).reward == 1.0
        assert server.ops[-2:] == ["load", "play"]
