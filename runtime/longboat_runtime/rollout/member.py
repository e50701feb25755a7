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
from longboat_runtime.weights.gate import calibration_key


class MemberState(StrEnum):
    """STARTING until vLLM is up; STARTED: it waits for a publication, or for its data; REFUSED: the last one did not pass."""

    STARTING = "starting"
    STARTED = "started"
    SERVING = "serving"
    REFUSED = "refused"
    ENDED = "ended"


@dataclass
class Slot:
    """A place for one engine in a rollout node. `refusals` counts publications that its engines refused in a row."""

    node: RolloutNode
    number: int
    refusals: int = 0


def engine_name(pod: str, slot: int, starts: int) -> str:
    """`<pod>/<slot>`, and how many engines this slot of the pod had before, if any (pure).

    A pod whose Ray node is started again has two nodes for a while, until Ray has noticed the end of the first: both count
    together, so that no two engines have one name.
    """
    return f"{pod}/{slot}" + (f".{starts}" if starts else "")


@dataclass
class Member:
    """An engine actor, its state, and what it holds. `turn` orders publications, of which `given` is the last one tried.

    `trouble` says why it doesn't serve. `fetches` counts updates in a row whose data could not be had. `ended` is set before it
    is ended on purpose.
    """

    config: EngineConfig
    actor: Any
    slot: Slot
    state: MemberState = MemberState.STARTING
    given: WeightPublication | None = None
    loaded: WeightPublication | None = None
    parity: float = 0.0
    trouble: str = ""
    ended: bool = False
    fetches: int = 0
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def name(self) -> str:
        return self.config.name

    @property
    def calibration(self) -> str:
        """Engines of the same have the same bound of the parity."""
        return calibration_key(self.config.dtype, self.config.tensor_parallel)


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
