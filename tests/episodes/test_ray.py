"""Episodes on a real Ray, with real recorders and environments, while actors, servers, engines and drivers die."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import ray

from longboat_runtime.episodes import fleet as fleet_module
from longboat_runtime.episodes.client import EpisodeClient
from longboat_runtime.local.ray import start_ray
from longboat_runtime.object_store import MINIMAL_OBJECT_STORE
from longboat_runtime.samples import (
    FinishedSample,
    FinishReason,
    GeneratedSample,
    LossCause,
    LostSample,
    SampleId,
    StartedSample,
)
from tests.episodes.actors import write_game
from tests.episodes.conftest import episode_directories, open_directory, start_environments_in
from tests.episodes.ray_world import REQUESTS, RESOURCES, RayWorld
from tests.support.waiting import eventually_async


@pytest.fixture(scope="module", autouse=True)
def _ray() -> Iterator[None]:
    start_ray(RESOURCES, MINIMAL_OBJECT_STORE)
    yield
    ray.shutdown()


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet_module, "RETRY_SECONDS", 0.1)


@pytest.fixture(scope="module")
def game(directory: Path) -> Path:
    return write_game(directory)


@asynccontextmanager
async def opened(socket: Path, game: Path, *functions: str, engines: int = 1) -> AsyncIterator[RayWorld]:
    world = RayWorld(socket, game, *functions)
    try:
        world.serve(engines)
        await world.fleet.ready()
        yield world
    finally:
        await world.close()


async def outcomes(world: RayWorld, count: int) -> dict[SampleId, FinishedSample | LostSample]:
    """Waits for what becomes of so many samples."""
    ended: dict[SampleId, FinishedSample | LostSample] = {}
    while len(ended) < count:
        for report in await world.fleet.finished():
            if isinstance(report, FinishedSample | LostSample):
                assert report.id not in ended
                ended[report.id] = report
    return ended


async def played(world: RayWorld) -> list[list[list[int]]]:
    """Plays all samples; returns the tokens of their segments."""
    await world.fleet.submit(REQUESTS)
    ended = await outcomes(world, len(REQUESTS))
    assert all(isinstance(report, FinishedSample) for report in ended.values()), ended
    return tokens(await world.store.get(sorted(ended)))


def tokens(samples: list[GeneratedSample]) -> list[list[list[int]]]:
    return [[segment.token_ids.tolist() for segment in sample.segments] for sample in samples]


async def begun(world: RayWorld, socket: Path, count: int) -> None:
    """Waits until so many episodes are played there."""
    started = 0
    while started < count:
        started += sum(isinstance(report, StartedSample) for report in await world.fleet.finished())
    await eventually_async(lambda: playing(socket), lambda number: number == count)


async def playing(socket: Path) -> int:
    client = EpisodeClient(socket)
    try:
        return int((await client.state())["playing"])
    finally:
        await client.close()


async def nothing_is_left(socket: Path, directory: Path) -> None:
    await eventually_async(lambda: playing(socket), lambda number: number == 0)
    await eventually_async(lambda: not episode_directories(directory))


async def test_lost_episodes_are_played_again_with_the_same_tokens(
    environments: Path, game: Path, directory: Path
) -> None:
    async with opened(environments, game, "guess") as world:
        first = await played(world)
        assert all(
            len(response.episode.turns) == 2
            for response in (await world.store.responses([r.id for r in REQUESTS])).values()
        )
    async with opened(environments, game, "hang", "guess") as world:
        hanging = [request for request in REQUESTS if request.id.row == 0]
        await world.fleet.submit(hanging)
        await begun(world, environments, len(hanging))
        member = next(iter(world.fleet._members.values()))
        ray.kill(member.actor)
        lost = await outcomes(world, len(hanging))
        assert {(report.cause, report.held_up) for report in lost.values()} == {(LossCause.ENVIRONMENT, True)}
        await nothing_is_left(environments, directory)
        assert not await world.store.held_ids()
        # The pod has another actor, and the same seeds draw the same.
        await world.fleet.ready()
        await world.fleet.submit([request for request in REQUESTS if request.id.row == 1])
        again = await outcomes(world, 2)
        assert tokens(await world.store.get(sorted(again))) == first[2:]


async def test_engines_that_die_cost_an_episode_nothing(environments: Path, game: Path) -> None:
    async with opened(environments, game, "guess", engines=2) as world:
        first = await played(world)
        ids = [request.id for request in REQUESTS]
        await world.store.delete(ids)
        ray.kill(world.actors[0])
        assert await played(world) == first


async def test_an_episode_is_aborted_and_leaves_nothing(environments: Path, game: Path, directory: Path) -> None:
    async with opened(environments, game, "hang") as world:
        await world.fleet.submit(REQUESTS)
        await begun(world, environments, len(REQUESTS))
        await world.fleet.abort([request.id for request in REQUESTS])
        ended = await outcomes(world, len(REQUESTS))
        assert {report.finish_reason for report in ended.values()} == {FinishReason.ABORT}
        await nothing_is_left(environments, directory)
        assert not await world.store.held_ids()


async def test_a_released_node_ends_what_it_plays_and_begins_nothing(environments: Path, game: Path) -> None:
    async with opened(environments, game, "guess") as world:
        [pod] = world.fleet.state.pods
        world.fleet.release([pod])
        await world.fleet.submit(REQUESTS)
        await eventually_async(lambda: world.fleet.state.drained == (pod,))
        assert not await world.store.held_ids()
        world.fleet.release([])
        assert len(await outcomes(world, len(REQUESTS))) == len(REQUESTS)


async def test_episodes_of_a_server_that_dies_are_lost_and_the_next_one_plays_the_same(game: Path) -> None:
    with open_directory() as folder:
        server = start_environments_in(folder)
        try:
            async with opened(folder / "environments.sock", game, "hang", "guess") as world:
                await world.fleet.submit(REQUESTS)
                first = await outcomes(world, 2)
                await eventually_async(lambda: playing(folder / "environments.sock"), lambda number: number == 2)
                drawn = tokens(await world.store.get(sorted(first)))
                server.kill()
                server.wait()
                lost = await outcomes(world, 2)
                assert {(report.cause, report.held_up) for report in lost.values()} == {(LossCause.ENVIRONMENT, True)}
                server = start_environments_in(folder)
                await world.store.delete(sorted(first))
                await world.fleet.submit([request for request in REQUESTS if request.id in first])
                again = await outcomes(world, 2)
                assert tokens(await world.store.get(sorted(again))) == drawn
        finally:
            server.terminate()
            server.wait()


@pytest.mark.extended
async def test_episodes_end_with_their_driver_and_the_next_one_plays_them_again(
    environments: Path, game: Path, directory: Path
) -> None:
    address = ray.get_runtime_context().gcs_address
    command = [sys.executable, "-m", "tests.episodes.ray_world", address, str(environments), str(game)]
    driver = await asyncio.to_thread(subprocess.Popen, command, stdout=subprocess.PIPE)
    assert driver.stdout is not None
    assert await asyncio.to_thread(driver.stdout.readline) == b"submitted\n"
    await eventually_async(lambda: playing(environments), lambda number: number == len(REQUESTS))
    driver.kill()
    driver.wait()
    await nothing_is_left(environments, directory)
    # Its store and its actors are gone too, once Ray has noticed.
    await eventually_async(lambda: ray.available_resources().get("longboat-store", 0.0) == 1.0)
    async with opened(environments, game, "guess") as world:
        assert len(await played(world)) == len(REQUESTS)
