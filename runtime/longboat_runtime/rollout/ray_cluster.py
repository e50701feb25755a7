"""The job's Ray cluster, as far as rollout needs it: nodes, engines' actors on them, and the pods that ask to go."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import RayError
from ray.experimental.internal_kv import internal_kv_get_gcs_client
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from longboat_runtime import departures
from longboat_runtime.ray_nodes import POD_LABEL, ROLLOUT_RESOURCE
from longboat_runtime.rollout.actor import EngineActor
from longboat_runtime.rollout.engine import EngineConfig
from longboat_runtime.rollout.environment import NodeDevices
from longboat_runtime.store.client import StoreClient
from longboat_runtime.tracebacks import cause, shortened

log = logging.getLogger(__name__)

# Calls that an engine's actor runs at once. Each turn is one until its reply has been drawn: there may be as many as the job has samples
# in flight, and calls about weights mustn't wait for them.
MOST_CALLS = 100_000


@dataclass(frozen=True, slots=True)
class RolloutNode:
    """A living Ray node with devices for engines. `pod` is its pod's name, or the node's where there are no pods."""

    node_id: str
    pod: str
    has: NodeDevices


def rollout_nodes(nodes: Iterable[Mapping[str, Any]]) -> dict[str, RolloutNode]:
    """Returns the living rollout nodes among `ray.nodes()`, by node id (pure)."""
    rollout = {}
    for node in nodes:
        resources = node.get("Resources", {})
        devices = int(resources.get(ROLLOUT_RESOURCE, 0))
        if not node.get("Alive") or devices == 0:
            continue
        node_id = node["NodeID"]
        pod = node.get("Labels", {}).get(POD_LABEL) or node.get("NodeName") or node_id
        rollout[node_id] = RolloutNode(node_id, pod, NodeDevices(devices, int(resources.get("GPU", 0))))
    return rollout


def death_cause(error: BaseException) -> str:
    """Returns what an actor's end is due to, in one line: by the traceback that Ray's error carries, if it carries one.

    Otherwise the last line that isn't indented by a tab, as details of the actor are; of an error that says nothing, its type.
    """
    text = str(error)
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("\t")]
    return cause(text) or (shortened(lines[-1]) if lines else type(error).__name__)


class RayCluster:
    """The cluster that `ray.init` has joined."""

    async def nodes(self) -> dict[str, RolloutNode]:
        """Returns the living rollout nodes, by id."""
        return rollout_nodes(await asyncio.to_thread(ray.nodes))

    async def asking(self) -> set[str]:
        """Returns the pods that have asked to go (see `departures`); none if the head doesn't answer."""
        try:
            return await asyncio.to_thread(lambda: set(departures.asking(internal_kv_get_gcs_client())))
        except RayError as error:
            log.warning("can't ask the Ray head which pods have to go: %s", death_cause(error))
            return set()

    async def let_go(self, pod: str) -> None:
        """Tells a pod that has asked that nothing runs in it any more."""
        try:
            await asyncio.to_thread(lambda: departures.let_go(internal_kv_get_gcs_client(), pod))
        except RayError as error:
            log.warning(
                "can't tell pod %s that it may go, so it goes at the end of its grace period: %s",
                pod,
                death_cause(error),
            )

    def start(self, config: EngineConfig, node: RolloutNode, store: StoreClient) -> Any:
        """Starts an actor on exactly that node, which takes as many of Ray's rollout resource as it has devices. It has no engine yet.

        Ray counts the devices, and `config` says which ones they are. That decides its accelerators, too: the actor asks Ray for none.
        """
        return (
            ray.remote(EngineActor)
            .options(
                num_cpus=0,
                resources={ROLLOUT_RESOURCE: config.tensor_parallel},
                max_restarts=0,
                max_concurrency=MOST_CALLS,
                scheduling_strategy=NodeAffinitySchedulingStrategy(node.node_id, soft=False),
            )
            .remote(config, node.has, store)
        )

    def kill(self, actor: Any) -> None:
        """Ends an actor's process at once."""
        ray.kill(actor)
