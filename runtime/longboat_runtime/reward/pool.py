"""One reward pool: its workers behind one queue, on Ray."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import ray
import structlog
from ray.exceptions import RayActorError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from longboat_crds.problems import SpecProblem
from longboat_crds.rewards import RewardSpec
from longboat_graders.messages import FunctionOutcome, GradersCapacity, IsolationInForce
from longboat_graders.result import RewardSample
from longboat_runtime.reward.attempts import Attempts, settled
from longboat_runtime.reward.client import disagreement
from longboat_runtime.reward.combine import own_seconds
from longboat_runtime.reward.cpus import PoolLoad
from longboat_runtime.reward.protocol import LEAST_URGENT
from longboat_runtime.reward.queue import GradeQueue, Group
from longboat_runtime.reward.slots import Slots, choose, resource
from longboat_runtime.reward.worker import GATHER_SECONDS, GradeAnswer, GradeAnswers, GradeRequest, RewardWorker
from longboat_runtime.samples import SampleId, TimeLimit
from longboat_runtime.store.protocol import SampleStore

log = structlog.get_logger()

# How long a node whose worker couldn't load the rewards is left alone, in seconds.
_RETRY_SECONDS = 30.0


@dataclass(slots=True)
class _PendingGrade:
    """A request that waits for a worker, or for its answer: outcomes by function, and the worker's node.

    It was asked for at `since` (loop time). A worker on a node that was `tried` gets it only if there is no other.
    """

    request: GradeRequest
    group: Group
    tried: set[str]
    answer: asyncio.Future[tuple[dict[str, FunctionOutcome], str]]
    since: float


@dataclass(slots=True)
class _Worker(Slots):
    """`requests` are those that it has, by number, including those of its `share`, which have yet to be sent.

    `exchange` sends and takes answers; it waits for an answer while `listening`. The last call began at `called` (loop time); the next one
    waits for company unless it is told to `hurry`. `given_up` are requests that it is about to be told to cancel. Its graders' container
    had used so many `cpu_seconds` when it last told them; None if it doesn't.
    """

    actor: Any = None
    requests: dict[int, _PendingGrade] = field(default_factory=dict)
    share: list[GradeRequest] = field(default_factory=list)
    given_up: list[int] = field(default_factory=list)
    asked_something: asyncio.Event = field(default_factory=asyncio.Event)
    hurry: asyncio.Event = field(default_factory=asyncio.Event)
    listening: bool = False
    called: float = -math.inf
    cpu_seconds: float | None = None
    sending: asyncio.TimerHandle | None = None
    exchange: asyncio.Task[None] | None = None

    def take_share(self, now: float) -> list[GradeRequest]:
        """Takes the share, which is sent now, and returns it."""
        share, self.share, self.called = self.share, [], now
        return share


class RewardPool:
    """Keeps one worker on every node of the pool, which `follow` is told of, and spreads grades over them.

    `rewards` are those that it grades, by their places in `spec.rewards`; its workers load no others. `isolation` says how the grades of
    each are kept apart, by name, and is kept up to date. `socket` is where the pool's graders listen on each of its nodes.
    """

    def __init__(
        self,
        name: str,
        rewards: Mapping[int, RewardSpec],
        store: SampleStore,
        socket: Path,
        isolation: dict[str, IsolationInForce],
    ) -> None:
        self.name = name
        self._rewards, self._store, self._socket, self._isolation = dict(rewards), store, socket, isolation
        self._workers: dict[str, _Worker] = {}
        self._changed = asyncio.Condition()
        self._queue: GradeQueue[_PendingGrade] = GradeQueue()
        # The queued requests, by number.
        self._queued: dict[int, _PendingGrade] = {}
        self._arrived = self._graded = 0
        self._cpu_seconds = 0.0
        self._numbers = count()
        self._assigning: asyncio.Handle | None = None
        self._problem: SpecProblem | None = None
        self._joining: dict[str, asyncio.Task[None]] = {}
        # Node -> loop time before which it isn't tried again.
        self._retry_at: dict[str, float] = {}
        # What the rewards are made of, by name, where one was loaded first; and where they are made of something else, in words.
        self.sources: Mapping[str, Mapping[str, str]] = {}
        self._disagreeing: dict[str, str] = {}

    @property
    def serving(self) -> bool:
        """Whether there is a worker to grade samples."""
        return bool(self._workers)

    @property
    def load(self) -> PoolLoad:
        """Work that the pool has now, and has done.

        An attempt at a grade counts as a grade. One that nothing waits for counts only once it runs.
        """
        workers, now = self._workers.values(), asyncio.get_running_loop().time()
        awaited = [pending for pending in self._queued.values() if pending.group.round != LEAST_URGENT.round]
        oldest = min((pending.since for pending in awaited), default=now)
        unanswered = [*awaited, *(pending for worker in workers for pending in worker.requests.values())]
        return PoolLoad(
            asked=sum(len(pending.request.samples) for pending in unanswered),
            at_once=sum(worker.at_once for worker in workers),
            queue_seconds=now - oldest,
            arrived=self._arrived,
            graded=self._graded,
            cpu_seconds=self._cpu_seconds,
        )

    @property
    def disagreeing(self) -> str:
        """Says how many pods don't grade because they loaded other files or versions of a reward than the first one; empty if none."""
        pods = [text for node, text in self._disagreeing.items() if node in self._retry_at or node in self._joining]
        return f"{len(pods)} of pool {self.name} ({pods[0]})" if pods else ""

    async def ready(self) -> None:
        """Waits for the first worker that has loaded all functions. Raises SpecProblem if one can't be found or imported."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._workers or self._problem is not None)
        if self._problem is not None:
            raise self._problem

    async def grade(
        self,
        samples: tuple[SampleId, ...],
        row_sample: RewardSample,
        rewards: Sequence[RewardSpec],
        group: Group,
        limits: Mapping[str, TimeLimit] | None = None,
        *,
        together: bool = False,
    ) -> dict[str, FunctionOutcome]:
        """Grades a stored sample by `rewards`, which are of this pool; returns outcomes by name. With `together`, all responses to a prompt.

        `row_sample` is what functions are told about its row. `limits` are those of functions whose timeouts are learned, by name.

        A grader error is retried, on another worker if there is one; workers and graders that are lost cost no attempt (see `Attempts`). If
        the call is cancelled, so is the grade: it leaves the queue, or is stopped where it runs. Raises KeyError with the samples that the
        store has lost.
        """
        outcomes: dict[str, FunctionOutcome] = {}
        tried: set[str] = set()
        attempts = Attempts()
        while attempts.may_retry:
            functions = tuple(
                (reward.name, reward.timeout_seconds * len(samples))
                for reward in rewards
                if reward.name not in settled(outcomes)
            )
            if not functions:
                break
            number, loop = next(self._numbers), asyncio.get_running_loop()
            own = own_seconds(rewards, limits)
            request = GradeRequest(number, samples, row_sample, functions, own, attempts.alone, together)
            pending = _PendingGrade(request, group, tried, loop.create_future(), loop.time())
            self._arrived += len(samples)
            self._put(pending)
            self._assign_soon()
            try:
                answered, node = await pending.answer
            except asyncio.CancelledError:
                self._give_up(pending)
                raise
            outcomes |= answered
            if attempts.count(answered):
                tried.add(node)
        return attempts.final(outcomes)

    def moved(self, group: Group) -> None:
        """Moves the group's requests in the queue to where its new rank puts them."""
        self._queue.moved(group)

    def flush(self) -> None:
        """Sends what waits to be sent together with others."""
        self._assign()
        for worker in self._workers.values():
            if worker.listening:
                self._send(worker)
            if worker.requests:
                # Even while it listens: the call under way may bring only answers to earlier requests.
                worker.hurry.set()

    def follow(self, nodes: Mapping[str, int]) -> None:
        """Follows the pool's nodes, each with its grading slots: gives up workers on others, and starts one where one is missing.

        A node whose worker couldn't load the rewards gets another one only after a while.
        """
        for node in set(self._workers) - set(nodes):
            lost = self._workers[node]
            self._lose(lost, ConnectionError("its node is gone"))
            if lost.exchange:
                lost.exchange.cancel()
        self._joining = {node: task for node, task in self._joining.items() if not task.done()}
        now = asyncio.get_running_loop().time()
        self._retry_at = {node: until for node, until in self._retry_at.items() if until > now}
        for node in set(nodes) - set(self._workers) - set(self._joining) - set(self._retry_at):
            self._joining[node] = asyncio.create_task(self._join(node, nodes[node]))

    async def close(self) -> None:
        """Ends all workers."""
        exchanges = [worker.exchange for worker in self._workers.values()]
        tasks = [task for task in (*self._joining.values(), *exchanges) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for worker in self._workers.values():
            ray.kill(worker.actor)
        self._workers.clear()

    # --- Requests --------------------------------------------------------------------------------------------------

    def _put(self, pending: _PendingGrade) -> None:
        self._queue.put(pending.group, pending.request.number, pending)
        self._queued[pending.request.number] = pending

    def _assign_soon(self) -> None:
        """Assigns once what happens at the same time has happened, so that a worker gets it in one call."""
        if self._assigning is None:
            self._assigning = asyncio.get_running_loop().call_soon(self._assign)

    def _assign(self) -> None:
        """Gives waiting requests to workers with free slots, in the queue's order; one that may use none of them is passed over."""
        self._assigning = None
        passed: list[_PendingGrade] = []
        while any(worker.running < worker.slots for worker in self._workers.values()):
            pending = self._queue.take()
            if pending is None:
                break
            if pending.answer.done():
                continue
            chosen = choose(self._workers.values(), pending.tried)
            if chosen is None:
                passed.append(pending)
            else:
                self._ask(self._workers[chosen.node], pending)
        for pending in passed:
            self._put(pending)

    def _ask(self, worker: _Worker, pending: _PendingGrade) -> None:
        """Adds the request to the worker's share, which the next call takes along: at most one in GATHER_SECONDS, `flush` aside."""
        worker.running += 1
        del self._queued[pending.request.number]
        worker.requests[pending.request.number] = pending
        worker.share.append(pending.request)
        worker.asked_something.set()
        if worker.listening and worker.sending is None:
            at = worker.called + GATHER_SECONDS
            worker.sending = asyncio.get_running_loop().call_at(at, self._send, worker)

    def _send(self, worker: _Worker) -> None:
        """Sends the share while the call that waits for answers is under way."""
        if worker.sending is not None:
            worker.sending.cancel()
            worker.sending = None
        if worker.share and worker.listening:
            worker.actor.submit.remote(worker.take_share(asyncio.get_running_loop().time()))

    def _give_up(self, pending: _PendingGrade) -> None:
        """Gives up a request whose answer nobody waits for any more; a worker that it was sent to is told to cancel it."""
        number = pending.request.number
        self._queue.remove(pending.group, number)
        self._queued.pop(number, None)
        for worker in self._workers.values():
            if worker.requests.pop(number, None) is None:
                continue
            worker.running -= 1
            unsent = [request for request in worker.share if request.number != number]
            if len(unsent) < len(worker.share):
                worker.share = unsent
            else:
                if not worker.given_up:
                    asyncio.get_running_loop().call_soon(self._cancel, worker)
                worker.given_up.append(number)
            self._assign_soon()

    def _cancel(self, worker: _Worker) -> None:
        """Tells the worker to cancel what was given up at the same time, in one call."""
        given_up, worker.given_up = worker.given_up, []
        worker.actor.cancel.remote(given_up)

    async def _exchange(self, worker: _Worker) -> None:
        """Sends shares and takes answers until the worker is lost."""
        loop = asyncio.get_running_loop()
        try:
            while True:
                await worker.asked_something.wait()
                with suppress(TimeoutError):
                    await asyncio.wait_for(worker.hurry.wait(), max(worker.called + GATHER_SECONDS - loop.time(), 0.0))
                worker.hurry.clear()
                worker.listening = True
                received: GradeAnswers = await worker.actor.answers.remote(worker.take_share(loop.time()))
                self._learn(received.isolation)
                self._follow_capacity(worker, received.capacity)
                for answer in received.answers:
                    self._take(worker, answer)
                worker.listening = False
                if received.changed:
                    self._lose(worker, ConnectionError(received.changed))
                    ray.kill(worker.actor)
                    return
                if not worker.requests:
                    worker.asked_something.clear()
                    worker.hurry.clear()
                self._assign_soon()
        except RayActorError as error:
            self._lose(worker, error)
        except Exception as error:
            for pending in worker.requests.values():
                if not pending.answer.done():
                    pending.answer.set_exception(error)
            raise

    def _learn(self, isolation: Mapping[str, IsolationInForce] | None) -> None:
        """Learns how a worker says grades are kept apart there. One that has fallen back to PerGrade is right about it for all."""
        for name, in_force in (isolation or {}).items():
            if in_force.reason or name not in self._isolation:
                self._isolation[name] = in_force

    def _follow_capacity(self, worker: _Worker, capacity: GradersCapacity | None) -> None:
        """Follows how many grades a worker says run at once there, and the CPU seconds of its graders' container.

        The container was restarted if those are less than before.
        """
        if capacity is None:
            return
        worker.at_once = capacity.at_once
        if worker.cpu_seconds is not None and capacity.cpu_seconds is not None:
            used = capacity.cpu_seconds - worker.cpu_seconds
            self._cpu_seconds += used if used >= 0 else capacity.cpu_seconds
        worker.cpu_seconds = capacity.cpu_seconds

    def _take(self, worker: _Worker, answer: GradeAnswer) -> None:
        pending = worker.requests.pop(answer.number, None)
        if pending is None:
            return  # given up
        worker.running -= 1
        self._graded += len(pending.request.samples)
        if not isinstance(answer.outcomes, Exception):
            if worker.cpu_seconds is None:
                # The container's CPU time isn't known. This sum lacks programs that functions start.
                self._cpu_seconds += sum(outcome.cpu_seconds for outcome in answer.outcomes.values())
            worker.learn(sum(outcome.seconds for outcome in answer.outcomes.values()))
        if pending.answer.done():
            return
        if isinstance(answer.outcomes, Exception):
            pending.answer.set_exception(answer.outcomes)
        else:
            pending.answer.set_result((answer.outcomes, worker.node))

    # --- Workers ---------------------------------------------------------------------------------------------------

    def _lose(self, worker: _Worker, error: Exception) -> None:
        """Gives up a worker that is lost. What it was asked goes back into the queue, which costs no attempt."""
        if self._workers.get(worker.node) is worker:
            log.warning("a reward worker is lost", pool=self.name, node=worker.node, error=str(error))
            del self._workers[worker.node]
            for pending in worker.requests.values():
                self._put(pending)
            self._assign_soon()

    async def _join(self, node: str, slots: int) -> None:
        """Starts a worker on the node and loads the pool's functions into its graders; it grades from then on."""
        actor = (
            ray.remote(RewardWorker)
            .options(
                num_cpus=0,
                resources={resource(self.name): 1},
                scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False),
            )
            .remote(self._store, self._socket)
        )
        try:
            problem = await actor.load.remote(self._rewards, self._isolation)
            capacity, sources = await actor.capacity.remote(), await actor.sources.remote()
        except RayActorError as error:
            log.warning("a reward worker didn't start", pool=self.name, node=node, error=str(error))
            return
        async with self._changed:
            self._disagreeing.pop(node, None)
            if problem is None and (problem := disagreement(self.sources, sources)):
                self._disagreeing[node] = problem
            if problem is None:
                self.sources = self.sources or sources
                worker = self._workers[node] = _Worker(node, slots, actor=actor)
                self._follow_capacity(worker, capacity)
                worker.exchange = asyncio.create_task(self._exchange(worker))
                self._assign_soon()
            else:
                log.warning("a reward worker can't grade", pool=self.name, node=node, problem=str(problem))
                self._retry_at[node] = asyncio.get_running_loop().time() + _RETRY_SECONDS
                ray.kill(actor)
                if isinstance(problem, SpecProblem):
                    self._problem = problem
            self._changed.notify_all()
