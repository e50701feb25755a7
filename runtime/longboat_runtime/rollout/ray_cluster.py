"""Gives an engine keeper what it needs of the job's Ray cluster: rollout nodes, actors on them, and the pods that ask to go."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import ray
from ray.exceptions import RayError
from ray.experimental.internal_kv import internal_kv_get_gcs_client

from longboat_runtime import departures
from longboat_runtime.rollout.engine import EngineConfig
from longboat_runtime.rollout.member import RolloutNode, death_cause, rollout_nodes, start_actor
from longboat_runtime.store.client import StoreClient

log = logging.getLogger(__name__)


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
        """Starts an actor on that node, without an engine yet."""
        return start_actor(config, node, store)

    def kill(self, actor: Any) -> None:
        """Ends an actor's process at once."""
        ray.kill(actor)
