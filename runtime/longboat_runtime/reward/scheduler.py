"""Grades samples in all reward pools of a job: `protocol.RewardScheduler` on Ray."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import count
from pathlib import Path
from types import MappingProxyType
from typing import Any

import ray
import structlog

from longboat_crds.job import RLJobSpec
from longboat_crds.rewards import RewardSpec, graded_pools, rewards_of
from longboat_graders.messages import FunctionOutcome, IsolationInForce
from longboat_graders.result import RewardSample
from longboat_runtime.reward.client import SOCKET
from longboat_runtime.reward.combine import applicable, combine, grade_times
from longboat_runtime.reward.cpus import PoolLoad
from longboat_runtime.reward.episodes import by_environment, with_episode
from longboat_runtime.reward.pool import RewardPool
from longboat_runtime.reward.protocol import Urgency
from longboat_runtime.reward.queue import Group
from longboat_runtime.reward.slots import reward_nodes
from longboat_runtime.reward.together import GradeAll, Together
from longboat_runtime.samples import EpisodeOutcome, Grade, PromptId, Row, SampleId, TimeLimit
from longboat_runtime.store.protocol import SampleStore

log = structlog.get_logger()

# How often Ray is asked which reward nodes there are, in seconds.
_WATCH_INTERVAL = 1.0


class RayRewardScheduler:
    """Has each reward's part of a grade done by the pool that the reward names, all of them at once.

    `start` must have returned before `grade` is called. `sockets` says where graders listen on the nodes of each pool, by its name.
    """

    def __init__(self, spec: RLJobSpec, store: SampleStore, sockets: Mapping[str, Path] | None = None) -> None:
        self._rewards: list[RewardSpec] = list(spec.rewards)
        self.isolation: dict[str, IsolationInForce] = {}
        self._pools: dict[str, RewardPool] = {}
        self._pool_of: dict[str, RewardPool] = {}
        for named in graded_pools(spec.reward_pools, spec.rewards):
            pool_rewards = rewards_of(spec.rewards, named.name)
            socket = SOCKET if sockets is None else sockets[named.name]
            pool = self._pools[named.name] = RewardPool(named.name, pool_rewards, store, socket, self.isolation)
            self._pool_of |= {reward.name: pool for reward in pool_rewards.values()}
        self._store, self._played = store, spec.environments is not None
        # Environments whose rewards no reward takes.
        self._unused: set[str] = set()
        self._groups: dict[tuple[PromptId, int], Group] = {}
        self._together: dict[tuple[PromptId, int], Together] = {}
        self._numbers = count()
        self._watching: asyncio.Task[None] | None = None

    @property
    def unserved(self) -> tuple[str, ...]:
        return tuple(name for name, pool in self._pools.items() if not pool.serving)

    @property
    def sources(self) -> dict[str, Mapping[str, str]]:
        return {name: sources for pool in self._pools.values() for name, sources in pool.sources.items()}

    @property
    def disagreeing(self) -> str:
        return ", ".join(text for pool in self._pools.values() if (text := pool.disagreeing))

    @property
    def loads(self) -> dict[str, PoolLoad]:
        return {name: pool.load for name, pool in self._pools.items()}

    async def start(self) -> None:
        """Waits until every pool has a worker that has loaded its functions. Raises SpecProblem if one can't be found or imported."""
        self._watching = asyncio.create_task(self._watch())
        waiting = [asyncio.create_task(pool.ready()) for pool in self._pools.values()]
        try:
            await asyncio.gather(*waiting)
        except BaseException:
            for task in waiting:
                task.cancel()
            await self.close()
            raise

    async def grade(
        self,
        sample: SampleId,
        row: Row,
        urgency: Urgency = Urgency(),  # noqa: B008 - immutable
        limits: Mapping[str, TimeLimit] | None = None,
        *,
        siblings: Sequence[SampleId] = (),
        training: Mapping[str, float] = MappingProxyType({}),
        only: str | None = None,
    ) -> Grade:
        """Grades a stored sample by the rewards for the row's domain (see `combine`). Raises KeyError if the store has lost it."""
        rewards = [reward for reward in applicable(self._rewards, row.domain) if only in (None, reward.name)]
        row_sample = RewardSample(
            "",
            row.text,
            row.ground_truth,
            row.domain,
            row.columns,
            row.messages,
            prefill=row.prefill,
            training=dict(training),
        )
        by_group = [reward for reward in rewards if reward.grades_groups]
        by_sample = [reward for reward in rewards if not reward.grades_groups and not by_environment(reward)]
        with self._group_of(sample, urgency) as group:

            def grade_all(samples: tuple[SampleId, ...]) -> Coroutine[Any, Any, dict[str, FunctionOutcome]]:
                return _run_together(
                    [pool.grade(samples, row_sample, own, group, together=True) for pool, own in self._shares(by_group)]
                )

            calls = [pool.grade((sample,), row_sample, own, group, limits) for pool, own in self._shares(by_sample)]
            if by_group:
                calls.append(self._grade_together(sample, siblings, grade_all))
            outcomes = await _run_together(calls)
            if self._played:
                outcomes = with_episode(rewards, outcomes, await self._episode(sample, rewards))
            group.missing = max(0, group.missing - 1)
        grade = combine(rewards, outcomes)
        return replace(grade, times=grade_times(outcomes, limits)) if limits else grade

    async def _episode(self, sample: SampleId, rewards: Sequence[RewardSpec]) -> EpisodeOutcome | None:
        """Returns what became of a sample's episode; None if it has none. Raises KeyError if the store has lost the sample."""
        outcomes = await self._store.outcomes([sample])
        if sample not in outcomes:
            raise KeyError(sample)
        episode = outcomes[sample]
        unused = episode is not None and episode.reward is not None and not any(map(by_environment, rewards))
        if episode is not None and unused and episode.environment not in self._unused:
            self._unused.add(episode.environment)
            log.warning(
                "the rewards that an environment returns don't count, since the row has no reward of kind Episode",
                environment=episode.environment,
            )
        return episode

    def _shares(self, rewards: Sequence[RewardSpec]) -> Iterable[tuple[RewardPool, list[RewardSpec]]]:
        """Divides rewards between their pools."""
        shares: dict[RewardPool, list[RewardSpec]] = {}
        for reward in rewards:
            shares.setdefault(self._pool_of[reward.name], []).append(reward)
        return shares.items()

    async def _grade_together(
        self, sample: SampleId, siblings: Sequence[SampleId], grade_all: GradeAll
    ) -> dict[str, FunctionOutcome]:
        """Waits until the sample is graded with all others of its group, which a call with `siblings` begins."""
        key = sample.prompt, sample.attempt
        together = self._together.setdefault(key, Together())
        try:
            return await together.outcomes(sample, tuple(sorted(siblings)), grade_all)
        finally:
            if not together.waiting:
                self._together.pop(key, None)

    def flush(self) -> None:
        for pool in self._pools.values():
            pool.flush()

    async def close(self) -> None:
        """Ends all workers."""
        if self._watching is not None:
            self._watching.cancel()
        for pool in self._pools.values():
            await pool.close()

    @contextmanager
    def _group_of(self, sample: SampleId, urgency: Urgency) -> Iterator[Group]:
        """Yields the sample's group, which is kept while any of its samples is being graded; the rank in all queues follows `urgency`."""
        key = sample.prompt, sample.attempt
        group = self._groups.get(key)
        if group is None:
            group = self._groups[key] = Group(next(self._numbers), *urgency)
        group.round, group.missing = urgency
        group.under_way += 1
        self._moved(group)
        try:
            yield group
        finally:
            group.under_way -= 1
            self._moved(group)
            if not group.under_way:
                del self._groups[key]

    def _moved(self, group: Group) -> None:
        for pool in self._pools.values():
            pool.moved(group)

    async def _watch(self) -> None:
        while True:
            nodes = reward_nodes(await asyncio.to_thread(ray.nodes), self._pools)
            for name, pool in self._pools.items():
                pool.follow(nodes[name])
            await asyncio.sleep(_WATCH_INTERVAL)


async def _run_together(parts: Sequence[Coroutine[Any, Any, dict[str, FunctionOutcome]]]) -> dict[str, FunctionOutcome]:
    """Runs all parts at once and returns their outcomes. If one of them fails the others are cancelled, as all are with this call."""
    if len(parts) == 1:
        return await parts[0]
    outcomes: dict[str, FunctionOutcome] = {}
    tasks = [asyncio.create_task(part) for part in parts]
    try:
        for result in await asyncio.gather(*tasks):
            outcomes |= result
    finally:
        for task in tasks:
            task.cancel()
    return outcomes
