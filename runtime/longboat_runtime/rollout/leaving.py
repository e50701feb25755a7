"""Rollout pods that have to go: nothing new runs there, and what runs continues elsewhere."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from longboat_runtime.rollout.member import Drains
from longboat_runtime.rollout.ray_cluster import RayCluster

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Leaving:
    """A pod that is being given back, with the engines that it had when that began."""

    engines: Sequence[str]
    draining: asyncio.Task[None]


class LeavingPods:
    """A pod goes because its agent asks, whose container has been told to end, or because the job's grant names it.

    The first is final. The second is taken back when the grant no longer names the pod, whether the drain has ended or not: the
    pod's engines then serve as before. A pod that isn't there is drained: if it joins later, it gets no engine while it is named.

    `engines_of` gives the names of a pod's engines, `spawn` runs work in the background, `changed` is called when a named pod's drain ends.
    """

    def __init__(
        self,
        cluster: RayCluster,
        drains: Drains,
        engines_of: Callable[[str], Sequence[str]],
        spawn: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]],
        changed: Callable[[], None],
    ) -> None:
        self._cluster, self._drains, self._engines_of = cluster, drains, engines_of
        self._spawn, self._changed = spawn, changed
        self._asked: set[str] = set()
        self._named: dict[str, Leaving] = {}

    def __contains__(self, pod: str) -> bool:
        return pod in self._asked or pod in self._named

    @property
    def drained(self) -> tuple[str, ...]:
        """Pods named by the grant in which nothing runs any more, and nothing will."""
        return tuple(sorted(pod for pod, leaving in self._named.items() if leaving.draining.done()))

    def name(self, pods: Collection[str]) -> list[str]:
        """Takes exactly these pods as those that the grant names; returns those that are taken back and whose agents don't ask to go."""
        back = [pod for pod in self._named if pod not in pods]
        for pod in back:
            leaving = self._named.pop(pod)
            leaving.draining.cancel()
            self._drains.undrain(leaving.engines)
        for pod in pods:
            if pod not in self._named:
                log.info("pod %s is given back", pod)
                engines = self._engines_of(pod)
                draining = self._spawn(self._drains.drain(engines))
                draining.add_done_callback(lambda _: self._changed())
                self._named[pod] = Leaving(engines, draining)
        return [pod for pod in back if pod not in self._asked]

    async def hear(self, pods: Mapping[str, Any]) -> None:
        """Lets go those of the pods there are that ask for it, once nothing runs in them."""
        for pod in (await self._cluster.asking()) & pods.keys() - self._asked:
            log.info("pod %s has to go", pod)
            self._asked.add(pod)
            self._spawn(self._let_go(pod))

    async def _let_go(self, pod: str) -> None:
        await self._drains.drain(self._engines_of(pod))
        await self._cluster.let_go(pod)
