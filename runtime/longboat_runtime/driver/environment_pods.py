"""The job's environment pods: the driver asks for them, and begins no episodes in those that the grant takes back."""

from __future__ import annotations

import asyncio

import structlog

from longboat_crds.reasons import Reason
from longboat_crds.status import EnvironmentDemand, EnvironmentGrant
from longboat_runtime.driver.context import Context
from longboat_runtime.driver.demand import most_episodes, next_environment_demand
from longboat_runtime.driver.observer import Observer
from longboat_runtime.episodes.protocol import EpisodePods, EpisodeState
from longboat_runtime.status_fragment import Problems, StatusFragment

log = structlog.get_logger()


class EnvironmentPods(Observer):
    """Asks for as many as the job's episodes can use. Reports pools without a pod that plays, for as long as it is so.

    A job without environments has none.
    """

    def __init__(self, context: Context) -> None:
        self._context, self._episodes = context, context.components.episodes
        self._pools = context.job.spec.environment_pools or ()
        self._most = most_episodes(context.job.spec, len(context.components.evaluation))
        self._demand: EnvironmentDemand | None = None
        # The pods that the grant takes back, with their pools.
        self._named: dict[str, str] = {}
        self._problems = Problems(context.news)
        self._started = False

    async def run(self) -> None:
        """Asks, and follows grants, forever. Raises Superseded, or whatever the pods fail with, in an ExceptionGroup."""
        if self._episodes is not None:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._follow_pods(self._episodes))
                tasks.create_task(self._follow_grants(self._episodes))

    async def _follow_pods(self, episodes: EpisodePods) -> None:
        state = episodes.state
        while True:
            self._ask(state)
            self._report(state)
            state = await episodes.changed(state)

    async def _follow_grants(self, episodes: EpisodePods) -> None:
        grant: EnvironmentGrant | None = None
        while True:
            grant = await self._context.broker.granted_environments(grant)
            pools = grant.pools or ()
            self._named = {leaving.pod: pool.name for pool in pools for leaving in pool.leaving or ()}
            granted = {pool.name: pool.replicas for pool in pools}
            log.info("environment pods are granted", replicas=granted, leaving=[*self._named])
            episodes.release([*self._named])

    def _ask(self, state: EpisodeState) -> None:
        drained: dict[str, list[str]] = {}
        for pod in state.drained:
            if pod in self._named:
                drained.setdefault(self._named[pod], []).append(pod)
        incarnation = self._context.job.incarnation
        demand = next_environment_demand(self._demand, incarnation, self._pools, self._most, state, drained)
        if demand != self._demand:
            self._demand = demand
            self._context.news.set()

    def _report(self, state: EpisodeState) -> None:
        """Reports pools without a pod that plays, once all have had one or a pod says why it can't."""
        serving = {pod.pool for pod in state.pods.values() if pod.serving}
        pools = [pool.name for pool in self._pools]
        without = [name for name in pools if name not in serving]
        self._started = self._started or not without
        missing = without if self._started else [name for name in without if name in state.problems]
        field, text = "", ""
        if missing:
            field = f"spec.environmentPools[{pools.index(missing[0])}].replicas"
            why = "; ".join(state.problems[name] for name in missing if name in state.problems)
            names = " and ".join(f"pool {name}" for name in missing)
            text = f"No environment pod of {names} plays, so its samples wait. {why or 'Check its pods, or raise their number.'}"
        self._problems.set(Reason.NO_ENVIRONMENTS, field, text, bool(missing))

    def status(self) -> StatusFragment:
        return StatusFragment(environment=self._demand, problems=self._problems.present)
