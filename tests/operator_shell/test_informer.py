"""What an informer does about a server that forgets, or has never had, what it continues from."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from longboat_operator.kube.client import Page
from longboat_operator.kube.clock import ServerClock
from longboat_operator.kube.errors import QuietError, TransportError, error_from_status
from longboat_operator.kube.resources import POD
from longboat_operator.watch.cache import Cache, Source
from longboat_operator.watch.feed import Feed, RestoredError
from longboat_operator.watch.freshness import Freshness
from longboat_operator.watch.informer import Informer
from tests.support.waiting import eventually_async

EXPIRED = {"code": 410, "reason": "Expired", "message": "too old resource version"}
TOO_LARGE = {
    "code": 504,
    "reason": "Timeout",
    "message": "Too large resource version: 100, current: 50",
    "details": {"causes": [{"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}]},
}
WATCHES = 12


class Server:
    """Refuses every watch in the same words; lists show one object, in these versions in turn, and the last one from then on."""

    def __init__(self, refusal: Exception, *versions: int) -> None:
        self.refusal, self.versions = refusal, [*versions]
        self.lists = self.watches = 0
        self.newest: int | None = None
        self.least = 100
        self.tired = asyncio.Event()

    async def list_pages(self, *arguments: Any) -> AsyncIterator[Page]:
        self.lists += 1
        version = self.versions.pop(0) if len(self.versions) > 1 else self.versions[0]
        metadata = {"name": "p", "namespace": "a", "uid": "u", "resourceVersion": str(version)}
        yield Page([{"metadata": metadata}], str(max(version, self.least)))

    async def version(self, *arguments: Any) -> int:
        return self.newest or 100

    @asynccontextmanager
    async def watch(self, *arguments: Any) -> AsyncIterator[Any]:
        self.watches += 1
        if self.watches > WATCHES:
            self.tired.set()
            await asyncio.Event().wait()

        async def events() -> AsyncIterator[Any]:
            raise self.refusal
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
    server = Server(error_from_status(refusal), 100)
    task = asyncio.create_task(informer(server).run())
    await server.tired.wait()
    task.cancel()
    pauses = [seconds for seconds in waits if seconds]
    assert server.lists == len(pauses) + 1 == WATCHES + 1
    assert pauses[0] <= 0.5
    assert sum(pauses) > WATCHES, "less than a list a second"
    assert max(pauses) <= 30.0


async def test_a_restored_server_that_takes_the_watch_is_found_out_once_it_is_back() -> None:
    """It would send nothing until its versions have passed those that the operator has seen."""
    server = Server(TransportError("connection reset"), 100)
    task = asyncio.create_task(informer(server).run())
    await eventually_async(lambda: server.watches >= 1)
    server.newest = 50
    with pytest.raises(RestoredError, match="from 100 to 50"):
        await task


async def test_a_server_that_was_restored_during_a_silence_is_found_out_after_it() -> None:
    """As a virtual machine whose snapshot is restored: it knows nothing of its connections."""
    server = Server(QuietError("silent"), 100)
    server.newest = 50
    with pytest.raises(RestoredError, match="from 100 to 50"):
        await informer(server).run()


async def test_a_list_of_a_restored_server_is_found_out() -> None:
    """It shows nothing that goes back: its versions are all below those that the cache has."""
    server = Server(error_from_status(TOO_LARGE), 90, 40)
    server.least = 0
    with pytest.raises(RestoredError, match="from 90 to 40"):
        await informer(server).run()


async def test_an_object_that_went_back_tells_of_a_restore_with_newer_versions() -> None:
    server = Server(error_from_status(EXPIRED), 90, 80)
    with pytest.raises(RestoredError, match="from version 90 to 80"):
        await informer(server).run()


def informer(server: Server) -> Informer:
    cache, source = Cache(), Source(POD.kind, None)
    feed = Feed(cache, Freshness([source], [source]), ServerClock(), lambda _: None)
    return Informer(server, POD, None, "", feed, asyncio.Semaphore())  # type: ignore[arg-type]
