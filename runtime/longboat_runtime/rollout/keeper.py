"""Keeps engines: one in each slot of each rollout node, started again when it dies."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Protocol

import ray
from ray.exceptions import RayError

from longboat_crds.job import RLJobSpec
from longboat_runtime.interfaces import WeightPublication
from longboat_runtime.problems import spec_problem_in
from longboat_runtime.rollout.engine import EngineDead, engine_config
from longboat_runtime.rollout.member import Member, MemberState, engine_name, start_actor
from longboat_runtime.rollout.nodes import RolloutNode, rollout_nodes
from longboat_runtime.samples import FinishedSample, SampleId
from longboat_runtime.store.client import StoreClient, StoreUnreachable
from longboat_runtime.weights.gate import PublicationRefused

log = logging.getLogger(__name__)

# How often Ray is asked which nodes there are.
WATCH_SECONDS = 1.0
# Wait before an engine that has died is started again; doubles each time until one in that slot has served.
RESTART_SECONDS = 1.0
MAX_RESTART_SECONDS = 60.0


class Listener(Protocol):
    """Who wants to know what becomes of engines and their samples."""

    def opened(self, member: Member) -> None:
        """The engine serves the last publication."""

    def refused(self, member: Member, lost: Sequence[SampleId], reason: str) -> None:
        """The engine serves nothing until a later publication passes; `lost` ran in it."""

    def died(self, member: Member, reason: str) -> None:
        """The engine is gone, with all that ran in it."""

    def finished_in(self, member: Member, samples: Sequence[FinishedSample]) -> None:
        """The store holds these samples."""


class EngineKeeper:
    """Runs on the driver's loop. `failure` ends all waiting: a SpecProblem, a lost store or a defect of ours."""

    def __init__(self, spec: RLJobSpec, store: StoreClient, listener: Listener) -> None:
        self.members: dict[str, Member] = {}
        self.publication: WeightPublication | None = None
        self._spec = spec
        self._store = store
        self._listener = listener
        self._failure: BaseException | None = None
        self._news = asyncio.Event()
        self._nodes: dict[str, RolloutNode] = {}
        self._starts: Counter[tuple[str, int]] = Counter()
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def started(self) -> list[Member]:
        """Engines that are up, serving or not."""
        return [member for member in self.members.values() if member.state is not MemberState.STARTING]

    def watch(self) -> None:
        """Begins to look for rollout nodes, once."""
        if not self._tasks:
            self._spawn(self._watch_nodes())

    def tell(self) -> None:
        """Wakes all that wait in `until`."""
        self._news.set()

    def fail(self, failure: BaseException) -> None:
        """Ends all waiting, now and later, by this error."""
        self._failure = failure
        self.tell()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Waits for a condition that changes only with `tell`. Raises the failure, if there is one."""
        while not condition():
            if self._failure is not None:
                raise self._failure
            self._news.clear()
            await self._news.wait()

    async def update(self, member: Member, publication: WeightPublication) -> str | None:
        """Has an engine load the publication and serve; returns why it does not."""
        try:
            await member.update_weights(publication)
        except PublicationRefused as refused:
            log.error("%s", refused.reason)
            member.state = MemberState.REFUSED
            self._listener.refused(member, refused.lost, refused.reason)
            return refused.reason
        except (RayError, EngineDead) as error:
            return f"engine {member.name} died: {last_line(error)}"
        member.state = MemberState.SERVING
        self._listener.opened(member)
        self.tell()
        return None

    async def close(self) -> None:
        """Ends all engines at once."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for member in self.members.values():
            ray.kill(member.actor)
        self.members.clear()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.fail(error)

    async def _watch_nodes(self) -> None:
        while True:
            nodes = rollout_nodes(await asyncio.to_thread(ray.nodes))
            new = [node for node_id, node in nodes.items() if node_id not in self._nodes]
            self._nodes = nodes
            for node in new:
                for slot in range(min(node.slots, self._spec.rollout.engines_per_pod)):
                    self._spawn(self._keep_engine(node, slot))
            await asyncio.sleep(WATCH_SECONDS)

    async def _keep_engine(self, node: RolloutNode, slot: int) -> None:
        """One engine after another in one slot, as long as its node lives."""
        wait = RESTART_SECONDS
        while node.node_id in self._nodes:
            number = self._starts[node.pod, slot]
            self._starts[node.pod, slot] += 1
            config = engine_config(self._spec, engine_name(node, slot, number))
            actor = start_actor(config, node, slot, self._spec.rollout.engines_per_pod, self._store)
            member = Member(config, actor)
            self.members[member.name] = member
            try:
                await self._serve(member)
            except StoreUnreachable:
                raise
            except (RayError, EngineDead) as error:
                self._bury(member, last_line(error))
                if (problem := spec_problem_in(error)) is not None:
                    raise problem from error
            wait = RESTART_SECONDS if member.loaded is not None else min(2 * wait, MAX_RESTART_SECONDS)
            await asyncio.sleep(wait)

    async def _serve(self, member: Member) -> None:
        """Starts the engine, gives it the last publication and takes what it finishes, until it dies."""
        await member.actor.start.remote()
        member.state = MemberState.STARTED
        self.tell()
        if self.publication is not None:
            await self.update(member, self.publication)
        while True:
            self._listener.finished_in(member, await member.actor.finished.remote())

    def _bury(self, member: Member, reason: str) -> None:
        log.warning("engine %s has ended: %s", member.name, reason)
        del self.members[member.name]
        ray.kill(member.actor)
        self._listener.died(member, f"engine {member.name} died: {reason}")
        self.tell()


def last_line(error: BaseException) -> str:
    """Ray's errors carry a whole traceback; its last line names the cause."""
    return (str(error).strip() or type(error).__name__).splitlines()[-1]
