"""A Ray node with a pool of environments, engines that draw by the seed of a turn, and a driver that a test may kill."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any, cast

import ray

from longboat_crds.base import Role
from longboat_runtime.driver.main import RAY_NAMESPACE
from longboat_runtime.episodes.cluster import EpisodeCluster
from longboat_runtime.episodes.fleet import EpisodeFleet
from longboat_runtime.episodes.tasks import Task
from longboat_runtime.ray_nodes import pool_resource
from longboat_runtime.rollout.engine_client import EngineClient
from longboat_runtime.rollout.protocol import RolloutFleet
from longboat_runtime.rollout.turn_router import TurnEngines
from longboat_runtime.samples import SampleRequest
from longboat_runtime.store.actor import start_store
from longboat_runtime.store.client import StoreClient
from longboat_runtime.turns import TurnReply, TurnRequest
from tests.episodes.actors import config_of, environment
from tests.episodes.clusters import Engines, sample_request
from tests.recorder.world import Engine, contexts_of

SLOTS = 4
RESOURCES = {"longboat-store": 1, pool_resource(Role.ENVIRONMENT, "games"): SLOTS}
REQUESTS = [sample_request(row, index) for row in range(2) for index in range(2)]


class Drawing:
    """An engine's actor, as far as turns go."""

    def __init__(self) -> None:
        self._engine = Engine("qwen3", ("text", "odd"))

    async def turn(self, request: TurnRequest, begun: TurnReply | None) -> TurnReply:
        assert begun is None
        return self._engine.draw(request)


class RowTasks:
    """Rows are played by the environment of that number, in a game of two turns."""

    def __init__(self, *environments: str) -> None:
        self._environments = environments

    def task_of(self, request: SampleRequest) -> Task:
        name = self._environments[request.id.row % len(self._environments)]
        return Task("games", name, {"question": f"row {request.id.row}"})


class RayWorld:
    """A driver's side: a store, a fleet of environment pods, and engines."""

    def __init__(self, socket: Path, game: Path, *functions: str) -> None:
        self.store = StoreClient(start_store())
        environments = [environment(game, function) for function in functions]
        self.engines = Engines()
        self.actors: list[Any] = []
        self.fleet = EpisodeFleet(
            {"games": config_of(socket, *environments)},
            RowTasks(*functions),
            cast("RolloutFleet", self.engines),
            self.store,
            EpisodeCluster(ray.put(contexts_of("qwen3")), self.store),
        )

    def serve(self, engines: int = 1) -> None:
        """Has so many new engines draw turns, and no others."""
        self.actors = [ray.remote(Drawing).options(num_cpus=0).remote() for _ in range(engines)]
        number = self.engines.table.number + 1
        named = {f"engine-{number}-{index}": EngineClient(actor) for index, actor in enumerate(self.actors)}
        self.engines.set(TurnEngines(number, named))

    async def close(self) -> None:
        await self.fleet.close()
        ray.kill(self.store.actor)
        for actor in self.actors:
            ray.kill(actor)


async def _drive(socket: Path, game: Path) -> None:
    """Has episodes begin that hang, and says so; they never end."""
    world = RayWorld(socket, game, "hang")
    world.serve()
    await world.fleet.ready()
    await world.fleet.submit(REQUESTS)
    print("submitted", flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    address, socket, game = sys.argv[1:]
    ray.init(address=address, namespace=RAY_NAMESPACE, log_to_driver=False)
    asyncio.run(_drive(Path(socket), Path(game)))
