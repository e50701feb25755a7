"""What an informer does about a server that forgets, or has never had, what it continues from."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from longboat_operator.kube.client import Page
from longboat_operator.kube.errors import error_from_status
from longboat_operator.kube.resources import POD
from longboat_operator.watch.cache import Cache, Source
from longboat_operator.watch.feed import Feed
from longboat_operator.watch.freshness import Freshness
from longboat_operator.watch.informer import Informer, RestoredError

EXPIRED = {"code": 410, "reason": "Expired", "message": "too old resource version"}
TOO_LARGE = {
    "code": 504,
    "reason": "Timeout",
    "message": "Too large resource version: 100, current: 50",
    "details": {"causes": [{"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}]},
}
WATCHES = 12


class Server:
    """Refuses every watch in the same words; lists show these versions in turn, and the last one from then on."""

    def __init__(self, refusal: dict[str, Any], *versions: str) -> None:
        self.refusal, self.versions = refusal, [*versions]
        self.lists = self.watches = 0
        self.tired = asyncio.Event()

    async def list_pages(self, *arguments: Any) -> AsyncIterator[Page]:
        self.lists += 1
        yield Page([], self.versions.pop(0) if len(self.versions) > 1 else self.versions[0])

    @asynccontextmanager
    async def watch(self, *arguments: Any) -> AsyncIterator[Any]:
        self.watches += 1
        if self.watches > WATCHES:
            self.tired.set()
            await asyncio.Event().wait()

        async def events() -> AsyncIterator[Any]:
            raise error_from_status(self.refusal)
            yield

        yield events()


@pytest.mark.parametrize("refusal", [EXPIRED, TOO_LARGE], ids=["expired", "too large"])
async def test_each_list_that_a_refused_version_calls_for_waits_longer(
    refusal: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []
    pause = asyncio.sleep

    async def sleep(seconds: float) -> None:
        waits.append(seconds)
        await pause(0)

    monkeypatch.setattr(asyncio, "sleep", sleep)
    server = Server(refusal, "100")
    task = asyncio.create_task(informer(server).run())
    await server.tired.wait()
    task.cancel()
    pauses = [seconds for seconds in waits if seconds]
    assert server.lists == len(pauses) + 1 == WATCHES + 1
    assert pauses[0] <= 0.5
    assert sum(pauses) > WATCHES, "less than a list a second"
    assert max(pauses) <= 30.0


async def test_versions_that_went_back_end_the_process() -> None:
    """What the cache holds of the time after the backup would never be replaced."""
    server = Server(TOO_LARGE, "100", "50")
    with pytest.raises(RestoredError, match="from 100 to 50"):
        await informer(server).run()


def informer(server: Server) -> Informer:
    cache, source = Cache(), Source(POD.kind, None)
    feed = Feed(cache, Freshness([source], [source]), lambda _: None)
    return Informer(server, POD, None, "", feed, asyncio.Semaphore())  # type: ignore[arg-type]
