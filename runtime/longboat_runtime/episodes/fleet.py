"""All environment pods of a job: samples go in and come out as from engines, and each is played as an episode."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Protocol

from ray.exceptions import RayError, RayTaskError

from longboat_crds.problems import SpecProblem
from longboat_runtime.episodes.cluster import EpisodeNode
from longboat_runtime.episodes.play import EpisodeConfig, EpisodeReport, EpisodeRequest
from longboat_runtime.episodes.protocol import EpisodePod, EpisodeState
from longboat_runtime.episodes.slots import EpisodeSlots
from longboat_runtime.episodes.tasks import Task
from longboat_runtime.rollout.background import BackgroundTasks
from longboat_runtime.rollout.protocol import RolloutFleet
from longboat_runtime.rollout.ray_cluster import death_cause
from longboat_runtime.rollout.turn_router import TurnEngines
from longboat_runtime.samples import (
    FinishedSample,
    FleetReport,
    LossCause,
    LostSample,
    SampleId,
    SampleRequest,
    StartedSample,
)
from longboat_runtime.store.protocol import SampleStore

log = logging.getLogger(__name__)

# How often the cluster is asked for nodes and for pods that have to go, in seconds.
_WATCH_SECONDS = 1.0
# How long a node is left alone whose actor ended, or couldn't load the environments, in seconds.
RETRY_SECONDS = 10.0
# How long an actor may take to end its episodes when the job ends.
_CLOSE_SECONDS = 5.0


class Cluster(Protocol):
    """Has nodes of environment pools, and starts actors there; see `cluster.EpisodeCluster`."""

    async def nodes(self, pools: Collection[str]) -> Mapping[str, EpisodeNode]: ...

    async def asking(self) -> set[str]: ...

    async def let_go(self, pod: str) -> None: ...

    def start(self, name: str, node: EpisodeNode, config: EpisodeConfig) -> Any: ...

    def kill(self, actor: Any) -> None: ...


class TaskSource(Protocol):
    """Knows which environment plays a sample, and what that gets."""

    def task_of(self, request: SampleRequest) -> Task: ...


@dataclass(slots=True, eq=False)
class _Member:
    """An actor on a node. It plays `launches`, by number, and is told what is in `orders`, one call after the other."""

    name: str
    node: EpisodeNode
    actor: Any
    launches: dict[int, SampleRequest] = field(default_factory=dict)
    orders: asyncio.Queue[tuple[str, Any]] = field(default_factory=asyncio.Queue)
    tasks: list[asyncio.Task[None]] = field(default_factory=list)


class EpisodeFleet:
    """Plays samples in environment pods: `rollout.protocol.SampleFleet`. Everything runs on the driver's loop.

    A sample is in one place: waiting here for a slot, played in a pod, or reported. What plays in a pod that goes is lost, and so is what its
    actor or its environments lose. A pod whose environments' server has gone plays again once that answers. `configs` are those of pools, by
    name; `tasks` says what plays a sample, `engines` which draw turns. Calls that wait raise SpecProblem if an environment can't be loaded
    until a person changes something.
    """

    def __init__(
        self,
        configs: Mapping[str, EpisodeConfig],
        tasks: TaskSource,
        engines: RolloutFleet,
        store: SampleStore,
        cluster: Cluster,
    ) -> None:
        self._configs, self._tasks_of, self._engines = dict(configs), tasks, engines
        self._store, self._cluster = store, cluster
        self._tasks = BackgroundTasks()
        self._slots = EpisodeSlots()
        self._waiting: dict[SampleId, tuple[SampleRequest, Task, float]] = {}
        # Where each sample plays whose outcome hasn't been reported.
        self._playing: dict[SampleId, tuple[_Member, int]] = {}
        self._members: dict[str, _Member] = {}
        self._joining: set[str] = set()
        self._retry_at: dict[str, float] = {}
        self._problems: dict[str, tuple[str, str]] = {}
        self._nodes: Mapping[str, EpisodeNode] = {}
        self._released: frozenset[str] = frozenset()
        self._asking: set[str] = set()
        self._gone: set[str] = set()
        self._numbers, self._names = count(), count()
        self._table = TurnEngines()
        self._events: list[FleetReport] = []
        self._watching = False

    async def submit(self, requests: Sequence[SampleRequest]) -> None:
        """Has samples wait for a slot of their environments' pools."""
        self.watch()
        now = time.monotonic()
        for request in requests:
            task = self._tasks_of.task_of(request)
            self._waiting[request.id] = request, task, now
            self._slots.submit(request.id, task.pool)
        self._begin()

    async def abort(self, ids: Sequence[SampleId]) -> None:
        """Stops samples. One that waits comes back at once, one that is played when its recorder has ended it; others are passed over."""
        for sample in ids:
            if self._slots.withdraw(sample):
                request, _, _ = self._waiting.pop(sample)
                self._report(request.unstarted)
            elif sample in self._playing:
                member, number = self._playing[sample]
                member.orders.put_nowait(("stop", [number]))

    async def finished(self) -> list[FleetReport]:
        """See rollout.protocol.SampleFleet."""
        self.watch()
        await self._tasks.until(lambda: bool(self._events))
        events, self._events = self._events, []
        return events

    def watch(self) -> None:
        """Begins to follow pods and engines."""
        if not self._watching:
            self._watching = True
            self._tasks.spawn(self._follow_nodes())
            self._tasks.spawn(self._follow_engines())

    async def ready(self) -> None:
        """Waits until each pool has a pod that plays. Raises SpecProblem if an environment can't be loaded."""
        self.watch()
        await self._tasks.until(lambda: {member.node.pool for member in self._members.values()} >= self._configs.keys())

    def release(self, pods: Collection[str]) -> None:
        """See protocol.EpisodePods."""
        self.watch()
        self._released = frozenset(pods)
        self._open()

    @property
    def state(self) -> EpisodeState:
        """The pods as they are now."""
        pods = {}
        for node in self._nodes.values():
            member = self._members.get(node.name)
            playing = len(member.launches) if member else 0
            pods[node.pod] = EpisodePod(node.pool, member is not None and self._stays(node.pod), playing)
        busy = {pod for pod, load in pods.items() if load.playing}
        return EpisodeState(pods, tuple(sorted(self._released - busy)), self._messages())

    async def changed(self, previous: EpisodeState) -> EpisodeState:
        """See protocol.EpisodePods."""
        self.watch()
        standing = previous.standing
        await self._tasks.until(lambda: self.state.standing != standing)
        return self.state

    async def stacks(self) -> dict[str, str]:
        """Returns the stacks of all threads of each actor that answers."""
        answers = await asyncio.gather(
            *(asyncio.wait_for(member.actor.stacks.remote(), _CLOSE_SECONDS) for member in self._members.values()),
            return_exceptions=True,
        )
        named = zip(self._members.values(), answers, strict=True)
        return {member.name: answer for member, answer in named if isinstance(answer, str)}

    async def close(self) -> None:
        """Ends all episodes; what is played is forgotten."""
        members = list(self._members.values())
        await self._tasks.close()
        closing = (asyncio.wait_for(member.actor.close.remote(), _CLOSE_SECONDS) for member in members)
        await asyncio.gather(*closing, return_exceptions=True)
        for member in members:
            self._cluster.kill(member.actor)

    # --- Samples ---

    def _begin(self) -> None:
        """Begins what waits and has a slot, in one call for each pod."""
        launches: dict[str, list[EpisodeRequest]] = {}
        now = time.monotonic()
        for sample, name in self._slots.begin():
            request, task, since = self._waiting.pop(sample)
            member, number = self._members[name], next(self._numbers)
            member.launches[number] = request
            self._playing[sample] = member, number
            begun = EpisodeRequest(number, request, task.environment, task.columns, task.arguments)
            launches.setdefault(name, []).append(begun)
            self._report(StartedSample(sample, now - since, request.evaluation))
        for name, requests in launches.items():
            self._members[name].orders.put_nowait(("play", requests))

    def _take(self, member: _Member, report: EpisodeReport) -> None:
        """Takes a report of an actor that is still a member."""
        request = member.launches[report.number]
        if report.outcome is not None and self._playing.get(request.id) == (member, report.number):
            del self._playing[request.id]
            if isinstance(report.outcome, FinishedSample):
                self._slots.end(request.id)
            self._report(report.outcome)
        if report.over:
            del member.launches[report.number]
            self._slots.free(member.node.name)
            self._begin()
            self._tasks.tell()

    def _report(self, event: FleetReport) -> None:
        self._events.append(event)
        self._tasks.tell()

    # --- Pods ---

    def _stays(self, pod: str) -> bool:
        return pod not in self._released and pod not in self._asking

    def _messages(self) -> dict[str, str]:
        """Returns a message for each pool with nodes that can't play."""
        return {pool: message for name, (pool, message) in sorted(self._problems.items()) if name in self._nodes}

    def _open(self) -> None:
        """Opens the pods that stay, and closes the others."""
        for name, member in self._members.items():
            self._slots.pods[name].open = self._stays(member.node.pod)
        self._begin()
        self._tasks.tell()

    async def _follow_nodes(self) -> None:
        """Gives up members whose nodes are gone, starts one on each node without, and lets pods go that have asked to."""
        while True:
            self._nodes = await self._cluster.nodes(self._configs)
            for name in [name for name in self._members if name not in self._nodes]:
                await self._lose(self._members[name], "its pod is gone")
            self._asking = await self._cluster.asking()
            now = time.monotonic()
            for name, node in self._nodes.items():
                if name in self._members or name in self._joining or self._retry_at.get(name, 0.0) > now:
                    continue
                if self._stays(node.pod):
                    self._joining.add(name)
                    self._tasks.spawn(self._join(node))
            self._open()
            for pod in {node.pod for node in self._nodes.values()} & self._asking - self._gone:
                if not any(member.launches for member in self._members.values() if member.node.pod == pod):
                    self._gone.add(pod)
                    await self._cluster.let_go(pod)
            await asyncio.sleep(_WATCH_SECONDS)

    async def _follow_engines(self) -> None:
        """Tells all actors which engines draw turns."""
        while True:
            self._table = await self._engines.turn_engines(self._table)
            for member in self._members.values():
                member.orders.put_nowait(("update", self._table))

    async def _join(self, node: EpisodeNode) -> None:
        """Starts an actor on a node, which plays once it has loaded the environments of the pool."""
        name = f"{node.name}.{next(self._names)}"
        actor = self._cluster.start(name, node, self._configs[node.pool])
        problem: SpecProblem | str | None
        try:
            problem = await actor.start.remote()
        except RayError as error:
            problem = death_cause(error)
        finally:
            self._joining.discard(node.name)
        if isinstance(problem, SpecProblem):
            self._cluster.kill(actor)
            raise problem
        if problem is not None:
            log.warning("no episodes can be played in %s: %s", node.name, problem)
            self._cluster.kill(actor)
            self._problems[node.name] = node.pool, problem
            self._retry_at[node.name] = time.monotonic() + RETRY_SECONDS
            self._tasks.tell()
            return
        self._problems.pop(node.name, None)
        member = self._members[node.name] = _Member(name, node, actor)
        member.orders.put_nowait(("update", self._table))
        self._slots.join(node.name, node.pool, node.slots)
        member.tasks = [self._tasks.spawn(self._send(member)), self._tasks.spawn(self._receive(member))]
        self._open()

    async def _send(self, member: _Member) -> None:
        """Tells an actor its orders, each once it has taken the one before: Ray may run a later call first."""
        while True:
            method, argument = await member.orders.get()
            try:
                await getattr(member.actor, method).remote(argument)
            except RayTaskError:
                raise
            except RayError:
                return  # `_receive` meets it too

    async def _receive(self, member: _Member) -> None:
        while True:
            try:
                reports = await member.actor.reports.remote()
            except RayTaskError:
                raise
            except RayError as error:
                await self._lose(member, f"the actor that plays it has ended: {death_cause(error)}")
                return
            if self._members.get(member.node.name) is not member:
                return  # it has been given up meanwhile, and what it played is lost
            gone = next((lost.reason for each in reports if (lost := _held_up(each)) is not None), None)
            if gone is not None:
                # It would be the pod with the most free slots, where what was lost is played, and lost, again.
                self._slots.pods[member.node.name].open = False
            for report in reports:
                self._take(member, report)
            if gone is not None:
                await self._lose(member, gone)
                return

    async def _lose(self, member: _Member, reason: str) -> None:
        """Gives up a member. What it plays is lost, since its pod was."""
        if self._members.get(member.node.name) is not member:
            return
        log.warning("episodes of %s are lost: %s", member.node.name, reason)
        del self._members[member.node.name]
        self._slots.leave(member.node.name)
        self._retry_at[member.node.name] = time.monotonic() + RETRY_SECONDS
        self._cluster.kill(member.actor)
        # A call that it sent before may arrive when its samples are made again.
        await self._store.refuse(member.name)
        for number, request in member.launches.items():
            if self._playing.get(request.id) == (member, number):
                del self._playing[request.id]
                lost = LostSample(request.id, reason, request.evaluation, cause=LossCause.ENVIRONMENT, held_up=True)
                self._report(lost)
        for task in member.tasks:
            if task is not asyncio.current_task():
                task.cancel()
        self._tasks.tell()


def _held_up(report: EpisodeReport) -> LostSample | None:
    """Returns the loss of an episode whose server went; None if the report is no such loss (pure)."""
    return report.outcome if isinstance(report.outcome, LostSample) and report.outcome.held_up else None
