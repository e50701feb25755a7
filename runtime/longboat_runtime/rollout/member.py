"""One engine of the fleet, seen from the driver."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from longboat_runtime.interfaces import WeightPublication
from longboat_runtime.rollout.engine import EngineConfig
from longboat_runtime.rollout.nodes import RESOURCE, RolloutNode
from longboat_runtime.store.client import StoreClient


class MemberState(StrEnum):
    """STARTING until vLLM is up; STARTED: it waits for a publication; SERVING; REFUSED: the last publication did not pass."""

    STARTING = "starting"
    STARTED = "started"
    SERVING = "serving"
    REFUSED = "refused"


@dataclass
class Member:
    """An engine actor, its state, and what it holds. `turn` orders publications."""

    config: EngineConfig
    actor: Any
    state: MemberState = MemberState.STARTING
    loaded: WeightPublication | None = None
    parity: float = 0.0
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def name(self) -> str:
        return self.config.name

    async def update_weights(self, publication: WeightPublication) -> None:
        """Loads a publication, unless it is the one loaded last. Raises what the actor raises."""
        async with self.turn:
            if self.loaded is not publication:
                self.parity = await self.actor.update_weights.remote(publication)
                self.loaded = publication


def engine_name(node: RolloutNode, slot: int, start: int) -> str:
    """`<pod>/<slot>`, and the number of the start from the second on: names of engines are never used twice."""
    return f"{node.pod}/{slot}" if start == 0 else f"{node.pod}/{slot}.{start}"


def start_actor(config: EngineConfig, node: RolloutNode, slot: int, engines: int, store: StoreClient) -> Any:
    """An actor on that node and no other. It has no engine yet."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    from longboat_runtime.rollout.actor import EngineActor

    return (
        ray.remote(EngineActor)
        .options(
            num_cpus=0,
            num_gpus=config.tensor_parallel if node.accelerators else 0,
            resources={RESOURCE: 1},
            max_restarts=0,
            scheduling_strategy=NodeAffinitySchedulingStrategy(node.node_id, soft=False),
        )
        .remote(config, slot, engines, store)
    )
