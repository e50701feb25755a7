"""The job's Ray cluster, as far as episodes need it: nodes of environment pools, and actors there."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from longboat_crds.base import Role
from longboat_runtime.episodes.actor import EpisodeActor
from longboat_runtime.episodes.play import EpisodeConfig
from longboat_runtime.ray_nodes import pool_resource
from longboat_runtime.rollout.ray_cluster import POD_LABEL, RayCluster
from longboat_runtime.store.client import StoreClient

# Calls that an actor runs at once: those of the driver, which are few.
_MOST_CALLS = 100


@dataclass(frozen=True, slots=True)
class EpisodeNode:
    """A living Ray node that plays `slots` episodes of a pool at once. `pod` is its pod's name, or the node's where there are no pods."""

    node_id: str
    pod: str
    pool: str
    slots: int

    @property
    def name(self) -> str:
        """Names it among the nodes of all pools: without pods, one node is of several."""
        return f"{self.pod}/{self.pool}"


def episode_nodes(nodes: Iterable[Mapping[str, Any]], pools: Iterable[str]) -> dict[str, EpisodeNode]:
    """Returns the living nodes of these pools among `ray.nodes()`, by name. Pure."""
    living = [
        EpisodeNode(
            node["NodeID"],
            node.get("Labels", {}).get(POD_LABEL) or node.get("NodeName") or node["NodeID"],
            pool,
            int(node["Resources"][pool_resource(Role.ENVIRONMENT, pool)]),
        )
        for node in nodes
        for pool in pools
        if node["Alive"] and node["Resources"].get(pool_resource(Role.ENVIRONMENT, pool), 0) >= 1
    ]
    return {node.name: node for node in living}


class EpisodeCluster:
    """The cluster that `ray.init` has joined. `contexts` are handed to each actor by reference."""

    def __init__(self, contexts: Any, store: StoreClient) -> None:
        self._contexts, self._store = contexts, store
        self._cluster = RayCluster()

    async def nodes(self, pools: Iterable[str]) -> dict[str, EpisodeNode]:
        """Returns the living nodes of these pools, by name."""
        return episode_nodes(await asyncio.to_thread(ray.nodes), pools)

    async def asking(self) -> set[str]:
        """Returns the pods that have asked to go."""
        return await self._cluster.asking()

    async def let_go(self, pod: str) -> None:
        """Tells a pod that has asked that nothing runs in it any more."""
        await self._cluster.let_go(pod)

    def start(self, name: str, node: EpisodeNode, config: EpisodeConfig) -> Any:
        """Starts an actor of that name on exactly that node. It has loaded nothing yet."""
        return (
            ray.remote(EpisodeActor)
            .options(
                num_cpus=0,
                max_restarts=0,
                max_concurrency=_MOST_CALLS,
                resources={pool_resource(Role.ENVIRONMENT, node.pool): 1},
                scheduling_strategy=NodeAffinitySchedulingStrategy(node.node_id, soft=False),
            )
            .remote(name, config, self._contexts, self._store)
        )

    def kill(self, actor: Any) -> None:
        """Ends an actor's process at once."""
        ray.kill(actor)
