"""Turns from recorders to engines on a real Ray: they go round the driver, and survive an engine's death and a drain."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytest_asyncio
import ray

from longboat_runtime.local.ray import start_ray
from longboat_runtime.object_store import MINIMAL_OBJECT_STORE
from longboat_runtime.rollout import keeper
from longboat_runtime.rollout.engine import TurnParsers, engine_config
from longboat_runtime.rollout.fleet import RayRolloutFleet
from longboat_runtime.rollout.turn_router import TurnEngine, TurnEngines, TurnRouter
from longboat_runtime.samples import FinishReason, SampleId, Sampling
from longboat_runtime.store.actor import start_store
from longboat_runtime.store.client import StoreClient
from longboat_runtime.turns import TurnReply, TurnRequest
from tests.rollout.reference import ReferenceModel
from tests.rollout.test_fleet import ENGINES, opened, published, spec
from tests.support.tiny_model import build_tiny_model
from tests.support.waiting import eventually_async

pytestmark = [pytest.mark.extended, pytest.mark.asyncio(loop_scope="module")]

SESSIONS = 8
LONG = 480


class Episodes:
    """Has a router in a process of its own, as a recorder has. Counts the turns that engines continue."""

    def __init__(self) -> None:
        self._router = TurnRouter("job-envs-0")
        self._drawing: dict[int, asyncio.Task[TurnReply]] = {}
        self._continued = 0

    async def update(self, table: TurnEngines) -> None:
        engines = {name: Counting(engine, self) for name, engine in table.engines.items()}
        self._router.update(replace(table, engines=engines))

    def count(self) -> None:
        self._continued += 1

    async def continued(self) -> int:
        return self._continued

    async def turn(self, request: TurnRequest) -> TurnReply:
        row = request.sample.row
        self._drawing[row] = asyncio.ensure_future(self._router.turn(request))
        try:
            return await self._drawing[row]
        finally:
            self._router.ended(request.sample)

    async def cancel(self, row: int) -> None:
        self._drawing[row].cancel()


@dataclass(frozen=True, slots=True)
class Counting:
    """An engine, which tells episodes of each turn that it continues."""

    engine: TurnEngine
    episodes: Episodes

    async def turn(self, request: TurnRequest, begun: TurnReply | None) -> TurnReply:
        if begun is not None and len(begun.token_ids):
            self.episodes.count()
        return await self.engine.turn(request, begun)


@pytest.fixture(scope="module")
def store() -> Iterator[StoreClient]:
    start_ray({"longboat-rollout": ENGINES, "longboat-store": 1}, MINIMAL_OBJECT_STORE)
    yield StoreClient(start_store())
    ray.shutdown()


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_tiny_model(tmp_path_factory.mktemp("model"))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def fleet(store: StoreClient, directory: Path) -> AsyncIterator[RayRolloutFleet]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(keeper, "engine_config", lambda *each: replace(engine_config(*each), parsers=TurnParsers()))
        async with opened(spec(directory), store) as made:
            await made.wait_started(ENGINES)
            await made.publish(published(ReferenceModel(directory)))
            yield made


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def episodes(fleet: RayRolloutFleet) -> AsyncIterator[Any]:
    """It gets the driver's news of engines."""
    actor = ray.remote(Episodes).options(num_cpus=0).remote()

    async def tell() -> None:
        table = TurnEngines()
        while True:
            table = await fleet.turn_engines(table)
            await actor.update.remote(table)

    telling = asyncio.create_task(tell())
    yield actor
    telling.cancel()


def asked(row: int, tokens: int = LONG) -> TurnRequest:
    prompt_ids = np.asarray([4 + (row * 7 + i) % 200 for i in range(8 + row)], np.int32)
    return TurnRequest(SampleId(0, row, 0, 0), 0, prompt_ids, 1000 * row, Sampling(tokens))


async def drawn(episodes: Any) -> list[TurnReply]:
    return await asyncio.gather(*(episodes.turn.remote(asked(row)) for row in range(SESSIONS)))


async def drawing(fleet: RayRolloutFleet, episodes: Any, name: str) -> asyncio.Future[list[TurnReply]]:
    """Begins to draw all turns; returns once the engine has drawn some tokens of them."""
    actor = fleet._keeper.members[name].actor
    await actor.take_load.remote()
    turns = asyncio.ensure_future(drawn(episodes))

    async def tokens() -> int:
        load = await actor.take_load.remote()
        return int(load.generated_tokens)

    await eventually_async(tokens)
    return turns


async def test_turns_outlive_the_death_and_the_drain_of_their_engine(fleet: RayRolloutFleet, episodes: Any) -> None:
    whole = await drawn(episodes)
    assert all(len(reply.token_ids) == len(reply.logprobs) for reply in whole)

    victim = min(fleet._turn_engines.engines)
    again = await drawing(fleet, episodes, victim)
    ray.kill(fleet._keeper.members[victim].actor)
    for reply, undisturbed in zip(await again, whole, strict=True):
        assert reply.token_ids.tolist() == undisturbed.token_ids.tolist()

    await fleet._tasks.until(lambda: len(fleet._turn_engines.engines) == ENGINES)
    drained = min(set(fleet._turn_engines.engines) - {f"{victim}.1"})
    # The drain may come when no turn runs any more.
    while not await episodes.continued.remote():
        again = await drawing(fleet, episodes, drained)
        await fleet.drain([drained])
        for reply, undisturbed in zip(await again, whole, strict=True):
            assert reply.finish_reason in (FinishReason.STOP, FinishReason.LENGTH)
            assert reply.token_ids[0] == undisturbed.token_ids[0], "a turn that moves keeps its first tokens"
        fleet.undrain([drained])
        await fleet._tasks.until(lambda: len(fleet._turn_engines.engines) == ENGINES)


async def test_a_cancelled_turn_leaves_its_engine(fleet: RayRolloutFleet, episodes: Any) -> None:
    turning = asyncio.ensure_future(episodes.turn.remote(asked(20)))

    async def runs() -> int:
        loads = await fleet.loads()
        return sum(load.generated_tokens for load in loads.values())

    await eventually_async(runs)
    await episodes.cancel.remote(20)
    with pytest.raises(Exception, match=r"(?i)cancel"):
        await turning
    await eventually_async(runs, lambda tokens: tokens == 0)
