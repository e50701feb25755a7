"""One engine of the fleet, seen from the driver, and the Ray node that hosts it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from longboat_runtime.interfaces import WeightPublication
from longboat_runtime.rollout.engine import EngineConfig
from longboat_runtime.store.client import StoreClient
from longboat_runtime.weights.gate import calibration_key

RESOURCE = "longboat-rollout"
POD_LABEL = "longboat.dev/pod"


@dataclass(frozen=True, slots=True)
class RolloutNode:
    """A living Ray node with slots for engines. `pod` is its pod's name, or the node's where there are no pods."""

    node_id: str
    pod: str
    slots: int
    accelerators: int


def rollout_nodes(nodes: Iterable[Mapping[str, Any]]) -> dict[str, RolloutNode]:
    """The rollout nodes among `ray.nodes()`, by node id (pure)."""
    found = {}
    for node in nodes:
        resources = node.get("Resources", {})
        slots = int(resources.get(RESOURCE, 0))
        if not node.get("Alive") or slots == 0:
            continue
        node_id = node["NodeID"]
        pod = node.get("Labels", {}).get(POD_LABEL) or node.get("NodeName") or node_id
        found[node_id] = RolloutNode(node_id, pod, slots, int(resources.get("GPU", 0)))
    return found


class MemberState(StrEnum):
    """STARTING until vLLM is up; STARTED: it waits for a publication or its data; REFUSED: the last one did not pass the gate."""

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

    `problem` says why it doesn't serve. `fetches` counts updates in a row whose data could not be fetched. `ended` is set before
    it is ended on purpose.
    """

    config: EngineConfig
    actor: Any
    slot: Slot
    state: MemberState = MemberState.STARTING
    given: WeightPublication | None = None
    loaded: WeightPublication | None = None
    parity: float = 0.0
    problem: str = ""
    ended: bool = False
    fetches: int = 0
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def name(self) -> str:
        return self.config.name

    @property
    def calibration(self) -> str:
        """Engines with the same key share the bound on their parity."""
        return calibration_key(self.config.dtype, self.config.tensor_parallel)


def start_actor(config: EngineConfig, node: RolloutNode, slot: int, engines: int, store: StoreClient) -> Any:
    """An actor on exactly that node. It has no engine yet."""
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
