"""When kopf is started again, in which namespaces, and what is planned meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from longboat_operator.kube.client import Page
from longboat_operator.kube.clock import ServerClock
from longboat_operator.kube.errors import ForbiddenError
from longboat_operator.kube.resources import RL_JOB, RL_RUNTIME
from longboat_operator.watch import jobs, repair
from longboat_operator.watch.cache import Cache, Source
from longboat_operator.watch.feed import Feed
from longboat_operator.watch.freshness import Freshness
from longboat_operator.watch.jobs import JobWatch
from tests.support.waiting import eventually_async

JOBS, RUNTIMES = Source(RL_JOB.kind, "a"), Source(RL_RUNTIME.kind, "a")


class Server:
    """Has one job, and refuses the kinds in `refused`; lists of those in `slow` don't end."""

    def __init__(self) -> None:
        self.refused: set[str] = set()
        self.slow: set[str] = set()
        self.jobs = {"j": 5}

    async def version(self, resource: Any, namespace: str | None) -> int:
        if resource.kind in self.refused:
            raise ForbiddenError(403, "Forbidden", "no")
        return 10

    @asynccontextmanager
    async def watch(self, *arguments: Any) -> AsyncIterator[Any]:
        yield None

    async def list_pages(self, resource: Any, namespace: str | None, *_: Any, **__: Any) -> AsyncIterator[Page]:
        await self.version(resource, namespace)
        if resource.kind in self.slow:
            await asyncio.Event().wait()
        listed = self.jobs if resource is RL_JOB else {}
        items = [
            {"metadata": {"namespace": "a", "name": name, "resourceVersion": str(version)}}
            for name, version in listed.items()
        ]
        yield Page(items, "10")


class Kopf:
    """Takes the place of a run of kopf; the test ends it."""

    runs: list[Kopf]
    ends_at_once = False

    def __init__(self, _: Any, __: Any, namespaces: list[str], ___: Any) -> None:
        self.namespaces = namespaces
        self.ended = asyncio.Event()
        if self.ends_at_once:
            self.ended.set()
        self.runs.append(self)

    def stop(self) -> None:
        self.ended.set()

    async def until_ended(self) -> None:
        await self.ended.wait()


class World:
    """An operator's watch of the jobs in one namespace."""

    def __init__(self) -> None:
        self.server, self.cache = Server(), Cache()
        sources = [JOBS, RUNTIMES]
        self.freshness = Freshness(sources, [])
        self.feed = Feed(self.cache, self.freshness, ServerClock(), lambda _: None)
        client: Any = self.server
        lists = repair.Repair(client, self.cache, self.feed, [], asyncio.Semaphore(8))
        self.watch = JobWatch(client, None, ("a",), self.feed, lists)  # type: ignore[arg-type]

    def put(self, name: str, version: int) -> None:
        metadata = {"namespace": "a", "name": name, "uid": name, "resourceVersion": str(version)}
        self.feed.put({"apiVersion": RL_JOB.api_version, "kind": RL_JOB.kind, "metadata": metadata})


@pytest.fixture
async def world(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    monkeypatch.setattr(jobs, "KopfRun", Kopf)
    monkeypatch.setattr(Kopf, "runs", [], raising=False)
    monkeypatch.setattr(jobs, "wait_seconds", lambda failures: 0.01)
    made = World()
    task = asyncio.create_task(made.watch.run())
    yield made
    task.cancel()
    await asyncio.wait([task])


async def test_jobs_of_a_namespace_in_which_another_kind_was_refused_are_listed_anew(world: World) -> None:
    """Nobody has watched them meanwhile."""
    world.put("j", 5)
    await eventually_async(lambda: world.freshness.serves("a"))
    world.server.refused = {RL_RUNTIME.kind}
    Kopf.runs[-1].stop()
    await eventually_async(lambda: RUNTIMES in world.freshness.failing)
    assert list(world.freshness.failing) == [RUNTIMES]
    world.server.slow, world.server.refused = {RL_JOB.kind}, set()
    await eventually_async(lambda: len(Kopf.runs) == 2)
    await eventually_async(lambda: RUNTIMES not in world.freshness.unlisted)
    assert not world.freshness.serves("a")


async def test_a_job_that_is_gone_before_kopf_has_listed_it_holds_nothing_up(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(repair, "LIST_AGAIN_SECONDS", 0.1)
    await eventually_async(lambda: world.freshness.owes(JOBS))
    world.server.jobs.clear()
    await eventually_async(lambda: world.freshness.serves("a"))
    assert not world.freshness.owes(JOBS)


async def test_kopf_that_ends_at_once_is_started_ever_more_rarely(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures: list[int] = []

    def wait_seconds(number: int) -> float:
        failures.append(number)
        return 0.01

    monkeypatch.setattr(Kopf, "ends_at_once", True)
    monkeypatch.setattr(jobs, "wait_seconds", wait_seconds)
    await eventually_async(lambda: len(failures) >= 5)
    assert failures[:5] == [1, 2, 3, 4, 5]
