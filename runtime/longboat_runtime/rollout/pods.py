"""Rollout pods: those that have joined, and those that have to go."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from longboat_runtime.rollout.background import BackgroundTasks
from longboat_runtime.rollout.member import Drains, Members
from longboat_runtime.rollout.ray_cluster import RayCluster, RolloutNode

log = logging.getLogger(__name__)

# How long after an engine's death its node is checked: when a pod ends, its engines end first.
NODE_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class ReleasedPod:
    """A pod that the grant names, with the engines that it had when that began."""

    engines: Sequence[str]
    draining: asyncio.Task[None]


class Pods:
    """The rollout nodes that Ray has, and which of their pods have to go: nothing new runs there, and what runs continues elsewhere.

    A pod goes because its agent asks, whose container has been told to end, or because the job's grant names it.
    The first is final. The second is taken back when the grant no longer names the pod, whether the drain has ended or not: the
    pod's engines then serve as before. A pod that isn't there is drained: if it joins later, it doesn't stay while it is named.
    """

    def __init__(self, cluster: RayCluster, members: Members, drains: Drains, tasks: BackgroundTasks) -> None:
        self._cluster, self._members, self._drains, self._tasks = cluster, members, drains, tasks
        self._nodes: dict[str, RolloutNode] = {}
        self._asking: set[str] = set()
        self._released: dict[str, ReleasedPod] = {}

    @property
    def names(self) -> tuple[str, ...]:
        """Pods that have joined and are still there, sorted."""
        return tuple(sorted({node.pod for node in self._nodes.values()}))

    @property
    def drained(self) -> tuple[str, ...]:
        """Pods named by the grant in which nothing runs any more, and nothing will."""
        return tuple(sorted(name for name, pod in self._released.items() if pod.draining.done()))

    @property
    def staying(self) -> dict[str, RolloutNode]:
        """The nodes of pods that don't have to go, by id."""
        leaving = self._asking | self._released.keys()
        return {node_id: node for node_id, node in self._nodes.items() if node.pod not in leaving}

    async def refresh(self) -> None:
        """Asks Ray which nodes there are."""
        self._nodes = await self._cluster.nodes()

    async def stays(self, node: RolloutNode) -> bool:
        """Whether an engine ended alone: not with its node, whose end Ray notices a moment later, nor in a pod that has to go."""
        await asyncio.sleep(NODE_SECONDS)
        if node.node_id not in await self._cluster.nodes():
            self._nodes.pop(node.node_id, None)
        return node.node_id in self.staying

    def release(self, pods: Collection[str]) -> None:
        """Drains exactly these pods because the grant names them, until another call no longer does."""
        for name in [name for name in self._released if name not in pods]:
            pod = self._released.pop(name)
            pod.draining.cancel()
            self._drains.undrain(pod.engines)
        for name in pods:
            if name not in self._released:
                log.info("pod %s is given back", name)
                engines = self._members.in_pod(name)
                draining = self._tasks.spawn(self._drains.drain(engines))
                draining.add_done_callback(lambda _: self._tasks.tell())
                self._released[name] = ReleasedPod(engines, draining)
        self._tasks.tell()

    async def begin_departures(self) -> None:
        """Drains pods whose agents have begun to ask to go, in the background, and then tells the agents that they may."""
        asking = await self._cluster.asking()
        for name in [name for name in self.names if name in asking and name not in self._asking]:
            log.info("pod %s has to go", name)
            self._asking.add(name)
            self._tasks.spawn(self._free(name))

    async def _free(self, name: str) -> None:
        await self._drains.drain(self._members.in_pod(name))
        await self._cluster.let_go(name)
