"""The job's reward pools: what they do in each round, and the division of CPUs over them that the driver asks for."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Mapping

import structlog

from longboat_crds.quantities import millicores
from longboat_crds.reward_kinds import RewardKind
from longboat_crds.status import RewardDemand, RewardGrant
from longboat_runtime.driver.context import Context
from longboat_runtime.driver.demand import asked_cpus, expected_grades, next_cpu_demand
from longboat_runtime.driver.observer import Observer
from longboat_runtime.driver.pool_loads import PoolLoads
from longboat_runtime.driver.resume import Restored
from longboat_runtime.metrics.batch import grading_metrics
from longboat_runtime.reward.combine import applicable
from longboat_runtime.reward.cpus import GradeCost, PoolLoad, PoolNeed, divide
from longboat_runtime.rounds import events, measurements
from longboat_runtime.rounds.events import Entry
from longboat_runtime.rounds.records import GroupRecord
from longboat_runtime.rounds.view import View
from longboat_runtime.samples import PromptId
from longboat_runtime.status_fragment import StatusFragment

log = structlog.get_logger()

# How often the driver looks whether to ask, and the least time between two demands, in seconds.
LOOK_SECONDS, ASK_SECONDS = 1.0, 5.0


class RewardPools(Observer):
    """Measures what pools do in each round. Asks for CPUs if the spec has `rewardCpu`, starting from what is granted.

    Every demand, and every grant of other CPUs, is a measurement. Without a grant, which there is none of outside Kubernetes, it asks for
    nothing.
    """

    watches = (events.RoundOpened, events.StepStarted)

    def __init__(self, context: Context) -> None:
        self._context, self._spec, self._components = context, context.job.spec, context.components
        self._course = PoolLoads(context.components.rewards, time.monotonic)
        self._metrics: dict[int, dict[str, float]] = {}
        self._view: View | None = None
        self._granted: RewardGrant | None = None
        self._demand: RewardDemand | None = None
        self._asked_at = float("-inf")
        self._costs = {pool.name: GradeCost() for pool in self._spec.reward_pools}
        self._loads: dict[str, PoolLoad] = {}
        self._changes = dict.fromkeys(self._costs, 0)
        self._pools: dict[str, frozenset[str]] = {}

    def resume(self, restored: Restored) -> None:
        """Starts to expect grades for samples: the job runs from now on."""
        self._view = restored.run_state.view

    def on(self, entry: Entry, before: GroupRecord | None) -> None:
        """Assigns the work of pools to a new round, or measures what they did in one that is over, as far as that is known."""
        match entry.body:
            case events.RoundOpened(round=number):
                self._course.begin(number)
            case events.StepStarted(step=step, round=number):
                self._metrics[step] = {**self._metrics.get(step, {}), **self._cpu_metrics()}
                if graded := self._course.finish(number):
                    self._context.inbox.put_nowait(graded)
                    self._metrics[step] |= grading_metrics(graded)

    async def metrics(self, step: int) -> Mapping[str, float]:
        return self._metrics.pop(step, {})

    def status(self) -> StatusFragment:
        return StatusFragment(reward=self._demand)

    async def run(self) -> None:
        """Looks at pools, asks, and follows grants, forever. Raises Superseded in an ExceptionGroup."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._course.run())
            if self._spec.reward_cpu is not None:
                tasks.create_task(self._follow_grants())
                tasks.create_task(self._follow_needs(millicores(self._spec.reward_cpu.total)))

    async def _follow_grants(self) -> None:
        while True:
            before = self._granted
            granted = await self._context.broker.granted_cpus(before)
            self._granted, cpus = granted, asked_cpus(granted)
            if before is None or asked_cpus(before) != cpus:
                log.info("CPUs are granted to reward pools", **cpus)
                self._context.inbox.put_nowait(measurements.CpusGranted(_in_cpus(cpus)))

    async def _follow_needs(self, total: int) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            if self._granted is not None and loop.time() >= self._asked_at + ASK_SECONDS:
                self._ask(total, self._needs(total), loop.time())

    def _needs(self, total: int) -> dict[str, PoolNeed]:
        """Returns what each pool has to do now; learns what grades have cost since the last call."""
        loads, before = self._components.rewards.loads, self._loads
        self._loads = dict(loads)
        prompts = self._spec.rounds.prompts_per_round
        expected = {} if self._view is None else expected_grades(self._view, prompts, self._pools_of)
        needs = {}
        for pool in self._spec.reward_pools:
            load, earlier = loads.get(pool.name, PoolLoad()), before.get(pool.name, PoolLoad())
            self._costs[pool.name].learn(load.graded - earlier.graded, load.cpu_seconds - earlier.cpu_seconds)
            least, most = pool.cpu_bounds(total)
            needs[pool.name] = PoolNeed(
                asked=load.asked,
                expected=expected.get(pool.name, 0.0),
                cpu_seconds=self._costs[pool.name].mean,
                processes=pool.processes,
                least=least,
                most=most,
                queue_seconds=load.queue_seconds,
            )
        return needs

    def _ask(self, total: int, needs: dict[str, PoolNeed], now: float) -> None:
        granted = self._granted
        assert granted is not None
        # While a demand has no answer, pools are going to have what was asked for.
        answered = self._demand is None or granted.answers == self._demand.number
        has = asked_cpus(granted if answered or self._demand is None else self._demand)
        requested = asked_cpus(granted if self._demand is None else self._demand)
        division = divide(total, needs, has)
        demand = next_cpu_demand(self._demand, self._context.job.incarnation, asked_cpus(granted), division)
        if demand is None or demand == self._demand:
            return
        self._demand, self._asked_at = demand, now
        for name, cpu in division.pools.items():
            self._changes[name] += cpu != requested.get(name)
        log.info("other CPUs are asked for reward pools", reason=demand.reason, **division.pools)
        self._context.inbox.put_nowait(measurements.CpusAsked(_in_cpus(division.pools), demand.reason or ""))
        self._context.news.set()

    def _cpu_metrics(self) -> dict[str, float]:
        """Returns, for each pool, its granted CPUs, and how often other CPUs were asked for."""
        if self._granted is None:
            return {}
        granted = asked_cpus(self._granted)
        return {
            **{f"reward/pools/{name}/cpus": cpu / 1000 for name, cpu in granted.items()},
            **{f"reward/pools/{name}/changes_asked": float(count) for name, count in self._changes.items()},
        }

    def _pools_of(self, prompt: PromptId) -> Collection[str]:
        """Returns the names of the pools that grade responses to this prompt."""
        domain = self._components.source.domain(prompt.row)
        if domain not in self._pools:
            only = self._spec.reward_pools[0].name
            rewards = applicable(self._spec.rewards, domain)
            self._pools[domain] = frozenset(
                reward.pool or only for reward in rewards if reward.kind is not RewardKind.EPISODE
            )
        return self._pools[domain]


def _in_cpus(pools: Mapping[str, int]) -> dict[str, float]:
    return {name: cpu / 1000 for name, cpu in pools.items()}
