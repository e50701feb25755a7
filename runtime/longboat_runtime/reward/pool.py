"""All reward workers of a job behind one queue: `interfaces.RewardPool` on Ray."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
import structlog
from ray.exceptions import RayActorError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from longboat_crds.job import RLJobSpec
from longboat_crds.rewards import RewardSpec
from longboat_runtime.interfaces import SampleStore
from longboat_runtime.problems import SpecProblem
from longboat_runtime.reward.client import SOCKET
from longboat_runtime.reward.combine import applicable, combine
from longboat_runtime.reward.result import FunctionOutcome, OutcomeKind
from longboat_runtime.reward.slots import RESOURCE, Slots, choose, reward_nodes
from longboat_runtime.reward.worker import GradeRequest, RewardWorker
from longboat_runtime.samples import Grade, Row, SampleId

log = structlog.get_logger()

# Grades a worker is given per grading process. Its graders bound how many run; the others wait there, so that no process is
# idle while an answer travels to the driver and the next request back.
_PER_PROCESS = 4
# A function that fails on a sample is run this often in all, each time on another worker if there is one.
GRADE_ATTEMPTS = 2
# How often Ray is asked which reward nodes there are, in seconds.
_WATCH_INTERVAL = 1.0
# How long a node whose worker couldn't be made ready is left alone, in seconds.
_RETRY_SECONDS = 30.0


@dataclass(slots=True)
class _Worker(Slots):
    actor: Any = None


class RayRewardPool:
    """Keeps one worker on every reward node, as nodes come and go, and spreads grades over them.

    `start` must have returned before `grade` is called. `socket` is where graders listen on every reward node.
    """

    def __init__(self, spec: RLJobSpec, store: SampleStore, socket: Path = SOCKET) -> None:
        self._rewards: list[RewardSpec] = list(spec.rewards)
        self._prompt_column = spec.dataset.columns.prompt
        self._store, self._socket = store, socket
        self._workers: dict[str, _Worker] = {}
        self._changed = asyncio.Condition()
        self._waiting: deque[tuple[set[str], asyncio.Future[_Worker]]] = deque()
        self._problem: SpecProblem | None = None
        self._joining: dict[str, asyncio.Task[None]] = {}
        # Node -> loop time before which it isn't tried again.
        self._retry_at: dict[str, float] = {}
        self._watching: asyncio.Task[None] | None = None

    @property
    def serving(self) -> bool:
        return bool(self._workers)

    async def start(self) -> None:
        """Waits for the first worker that has loaded all functions. Raises SpecProblem if one can't be found or imported."""
        self._watching = asyncio.create_task(self._watch())
        async with self._changed:
            await self._changed.wait_for(lambda: self._workers or self._problem is not None)
        if self._problem is not None:
            await self.close()
            raise self._problem

    async def grade(self, sample: SampleId, row: Row) -> Grade:
        """The weighted sum of the functions for the row's domain.

        A grader error is retried on another worker. A worker that is lost costs no attempt. Raises KeyError if the
        store has lost the sample.
        """
        rewards = applicable(self._rewards, row.domain)
        outcomes: dict[str, FunctionOutcome] = {}
        tried: set[str] = set()
        for _ in range(GRADE_ATTEMPTS):
            todo = tuple(
                (reward.name, reward.timeout_seconds) for reward in rewards if reward.name not in _settled(outcomes)
            )
            if not todo:
                break
            outcomes |= await self._run(GradeRequest(sample, row, self._prompt_column, todo), tried)
        return combine(rewards, outcomes)

    async def close(self) -> None:
        """Ends all workers."""
        tasks = [task for task in (self._watching, *self._joining.values()) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for worker in self._workers.values():
            ray.kill(worker.actor)
        self._workers.clear()

    async def _run(self, request: GradeRequest, tried: set[str]) -> dict[str, FunctionOutcome]:
        """One attempt on a worker not in `tried`, which it is added to; moves on to the next one as long as workers are lost."""
        while True:
            worker = await self._acquire(tried)
            try:
                outcomes: dict[str, FunctionOutcome] = await worker.actor.grade.remote(request)
            except RayActorError as error:
                self._lose(worker, error)
            else:
                tried.add(worker.node)
                return outcomes
            finally:
                worker.running -= 1
                self._assign()

    async def _acquire(self, tried: set[str]) -> _Worker:
        """A place at a worker, first come, first served."""
        asked: asyncio.Future[_Worker] = asyncio.get_running_loop().create_future()
        self._waiting.append((tried, asked))
        self._assign()
        try:
            return await asked
        except asyncio.CancelledError:
            if asked.done() and not asked.cancelled():
                asked.result().running -= 1
                self._assign()
            raise

    def _assign(self) -> None:
        """Gives free places to waiting requests; one that may use none of them is passed over."""
        passed: list[tuple[set[str], asyncio.Future[_Worker]]] = []
        while self._waiting and any(worker.running < worker.slots for worker in self._workers.values()):
            tried, asked = self._waiting.popleft()
            if asked.done():
                continue
            chosen = choose(self._workers.values(), tried)
            if chosen is None:
                passed.append((tried, asked))
            else:
                chosen.running += 1
                asked.set_result(self._workers[chosen.node])
        self._waiting.extendleft(reversed(passed))

    def _lose(self, worker: _Worker, error: Exception) -> None:
        if self._workers.get(worker.node) is worker:
            log.warning("a reward worker is lost", node=worker.node, error=str(error))
            del self._workers[worker.node]
            self._assign()

    async def _watch(self) -> None:
        while True:
            nodes = reward_nodes(await asyncio.to_thread(ray.nodes))
            for node in set(self._workers) - set(nodes):
                self._lose(self._workers[node], ConnectionError("its node is gone"))
            self._joining = {node: task for node, task in self._joining.items() if not task.done()}
            now = asyncio.get_running_loop().time()
            self._retry_at = {node: until for node, until in self._retry_at.items() if until > now}
            for node in set(nodes) - set(self._workers) - set(self._joining) - set(self._retry_at):
                self._joining[node] = asyncio.create_task(self._join(node, nodes[node]))
            await asyncio.sleep(_WATCH_INTERVAL)

    async def _join(self, node: str, slots: int) -> None:
        """Starts a worker on the node and loads all functions into its graders; it grades from then on."""
        actor = (
            ray.remote(RewardWorker)
            .options(
                num_cpus=0,
                resources={RESOURCE: 1},
                scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False),
            )
            .remote(self._store, self._socket)
        )
        try:
            problem = await actor.load.remote(self._rewards)
        except RayActorError as error:
            log.warning("a reward worker didn't start", node=node, error=str(error))
            return
        async with self._changed:
            if problem is None:
                self._workers[node] = _Worker(node, slots * _PER_PROCESS, actor=actor)
                self._assign()
            else:
                log.warning("a reward worker can't grade", node=node, problem=str(problem))
                self._retry_at[node] = asyncio.get_running_loop().time() + _RETRY_SECONDS
                ray.kill(actor)
                if isinstance(problem, SpecProblem):
                    self._problem = problem
            self._changed.notify_all()


def _settled(outcomes: dict[str, FunctionOutcome]) -> set[str]:
    return {name for name, outcome in outcomes.items() if outcome.kind is not OutcomeKind.GRADER_ERROR}
