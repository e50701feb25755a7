"""The job's rollout pods: the driver asks for them, and drains those that the grant takes back."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

import structlog

from longboat_crds.job import RLJobSpec
from longboat_crds.status import RolloutDemand, RolloutGrant
from longboat_runtime.driver.context import Context
from longboat_runtime.driver.demand import next_demand
from longboat_runtime.driver.observer import Observer
from longboat_runtime.rollout.protocol import FleetState
from longboat_runtime.rounds import measurements
from longboat_runtime.status_fragment import StatusFragment

log = structlog.get_logger()


class RolloutPods(Observer):
    """Asks for as many as `rollout.replicas` says, as soon as it is edited.

    Pods that join or go are measurements, and so is every pod that the grant takes back, once it is drained, if it is still there.
    """

    def __init__(self, context: Context) -> None:
        self._context, self._fleet = context, context.components.fleet
        self._replicas = context.job.spec.rollout.replicas
        self._demand: RolloutDemand | None = None
        self._pods: frozenset[str] = frozenset()
        self._named: dict[str, float] = {}
        self._reported: set[str] = set()

    async def edit(self, spec: RLJobSpec) -> None:
        self._replicas = spec.rollout.replicas
        self._ask(self._demand.drained or () if self._demand else ())

    async def run(self) -> None:
        """Asks, and follows grants, forever. Raises Superseded, or whatever the fleet fails with, in an ExceptionGroup."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._follow_fleet())
            tasks.create_task(self._follow_grants())

    async def _follow_fleet(self) -> None:
        state = FleetState()
        while True:
            self._compare_pods(frozenset(state.pods))
            for pod in state.drained:
                if pod in state.pods and pod in self._named and pod not in self._reported:
                    self._reported.add(pod)
                    self._context.inbox.put_nowait(
                        measurements.PodDrained(pod, round(time.monotonic() - self._named[pod], 3))
                    )
            self._ask(state.drained)
            state = await self._fleet.changed(state)

    def _compare_pods(self, pods: frozenset[str]) -> None:
        """Records which pods have joined or gone."""
        if pods != self._pods:
            changed = measurements.PodsChanged(tuple(sorted(pods - self._pods)), tuple(sorted(self._pods - pods)))
            self._pods = pods
            self._context.inbox.put_nowait(changed)

    async def _follow_grants(self) -> None:
        grant: RolloutGrant | None = None
        while True:
            grant = await self._context.broker.granted(grant)
            named = [leaving.pod for leaving in grant.leaving or ()]
            log.info("rollout pods are granted", replicas=grant.replicas, leaving=named)
            now = time.monotonic()
            self._named = {pod: self._named.get(pod, now) for pod in named}
            self._reported.intersection_update(named)
            self._fleet.release(named)

    def _ask(self, drained: Sequence[str]) -> None:
        incarnation = self._context.job.incarnation
        demand = next_demand(self._demand, incarnation, self._replicas, self._fleet.pods, drained)
        if demand != self._demand:
            self._demand = demand
            self._context.news.set()

    def status(self) -> StatusFragment:
        return StatusFragment(rollout=self._demand)
