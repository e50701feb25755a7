"""How many processes an environment's zygote is asked to fork at once, by a stand-in for the zygote that forks none."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from longboat_graders import episodes
from longboat_graders.episodes import LoadedEnvironment, Playing
from longboat_graders.zygote_process import MOST_AT_ONCE
from tests.support.waiting import eventually_async

EPISODES = 300  # more requests than fit into the buffer of the zygote's socket


class StandIn:
    """Keeps what it is asked to fork."""

    def __init__(self, *_: object) -> None:
        self.asked: list[int] = []
        self.sockets: list[socket.socket] = []
        self.killed = asyncio.Event()

    async def load(self) -> None:
        return

    def tell(self, message: Mapping[str, Any], sockets: Sequence[socket.socket] = ()) -> None:
        self.asked += message["fork"]
        self.sockets += [each.dup() for each in sockets]

    def kill(self) -> None:
        self.killed.set()


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> LoadedEnvironment:
    monkeypatch.setattr(episodes, "ZygoteHost", StandIn)
    return LoadedEnvironment({"name": "game"}, "spec.environments[0]", tmp_path, tmp_path)


def launches(loaded: LoadedEnvironment, count: int) -> list[asyncio.Task[None]]:
    server: Any = SimpleNamespace(ended=lambda _: None)
    client: Any = SimpleNamespace(open=False)
    played = [Playing(server, client, number) for number in range(count)]
    return [asyncio.create_task(loaded.play(playing, {}, b"")) for playing in played]


async def test_a_zygote_is_asked_for_no_more_at_once_than_it_can_take(loaded: LoadedEnvironment) -> None:
    zygote: Any = loaded._zygote
    tasks = launches(loaded, EPISODES)
    for forked in range(EPISODES):
        await eventually_async(lambda forked=forked: len(zygote.asked) > forked)
        assert len(zygote.asked) - forked <= MOST_AT_ONCE
        loaded.heard({"forked": zygote.asked[forked]})
    await asyncio.gather(*tasks)
    assert len(set(zygote.asked)) == EPISODES
    assert not zygote.killed.is_set()


async def test_a_zygote_that_does_not_answer_is_ended(
    loaded: LoadedEnvironment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(episodes, "STUCK_SECONDS", 0.01)
    zygote: Any = loaded._zygote
    await asyncio.gather(*launches(loaded, 1))
    assert zygote.killed.is_set()


async def test_what_a_lost_zygote_was_asked_for_holds_up_nothing(loaded: LoadedEnvironment) -> None:
    zygote: Any = loaded._zygote
    tasks = launches(loaded, 2 * MOST_AT_ONCE)
    for asked in (MOST_AT_ONCE, 2 * MOST_AT_ONCE):
        await eventually_async(lambda asked=asked: len(zygote.asked) == asked)
        loaded.lost()
    await asyncio.gather(*tasks)
