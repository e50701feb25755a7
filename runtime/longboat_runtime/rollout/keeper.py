"""Keeps engines: one in each slot of each rollout node, started again when it dies."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any

from ray.exceptions import RayError

from longboat_crds.job import RLJobSpec
from longboat_crds.problems import spec_problem_in
from longboat_runtime.rollout.background import BackgroundTasks
from longboat_runtime.rollout.engine import EngineDead, engine_config
from longboat_runtime.rollout.member import Listener, Member, Members, MemberState, Slot, engine_name, slots_of
from longboat_runtime.rollout.pods import Pods
from longboat_runtime.rollout.protocol import FleetState
from longboat_runtime.rollout.ray_cluster import RayCluster, RolloutNode, death_cause
from longboat_runtime.rollout.weight_updates import WeightUpdates
from longboat_runtime.store.client import StoreClient, StoreUnreachable

log = logging.getLogger(__name__)

# How often Ray is asked which nodes there are.
WATCH_SECONDS = 1.0
# Wait before an engine that died while it served is started again; each one that dies otherwise doubles it for its slot.
RESTART_SECONDS = 1.0
MAX_RESTART_SECONDS = 60.0


class EngineKeeper:
    """Keeps engines of `tensor_parallel` devices each in nodes that stay. `deaths` counts engines that died by themselves."""

    def __init__(
        self, spec: RLJobSpec, store: StoreClient, listener: Listener, cluster: RayCluster, tasks: BackgroundTasks
    ) -> None:
        self.members = Members()
        self.pods = Pods(cluster, self.members, listener, tasks)
        self.updates = WeightUpdates(self.members, listener, cluster, tasks, spec.rollout.publication)
        self.tensor_parallel = spec.rollout.tensor_parallel
        self.deaths = 0
        self.last_death = ""
        self._spec = spec
        self._store = store
        self._listener = listener
        self._cluster = cluster
        self._tasks = tasks
        self._watching = False
        self._reshaping = False
        self._shaping: set[str] = set()
        self._starts: Counter[tuple[str, tuple[int, ...]]] = Counter()
        self._proven: set[int] = set()

    @property
    def state(self) -> FleetState:
        return FleetState(
            serving=self.members.serving,
            refused=self.members.problems(MemberState.REFUSED),
            unreached=self.members.problems(MemberState.STARTED),
            fetches=self.updates.fetches,
            deaths=self.deaths,
            last_death=self.last_death,
            pods=self.pods.names,
            drained=self.pods.drained,
        )

    def watch(self) -> None:
        """Begins to look for rollout nodes, once."""
        if not self._watching:
            self._watching = True
            self._tasks.spawn(self._watch_nodes())

    def release(self, pods: Collection[str]) -> None:
        """See protocol.RolloutFleet."""
        self.pods.release(pods)
        self._fill()

    async def end_engines(self, nodes: Collection[str]) -> None:
        """Ends the engines of these nodes and gives up their slots; returns once they are gone."""
        for node_id in nodes:
            self.members.slots.pop(node_id, None)
        members = self.members.in_nodes(nodes)
        await asyncio.gather(*(member.end(self._cluster) for member in members))
        await self._tasks.until(lambda: not any(member.name in self.members for member in members))

    async def start_engines(self, nodes: Collection[str]) -> asyncio.Future[Any]:
        """Starts engines of `tensor_parallel` devices on the free devices of these nodes, and waits until they are up.

        Returns what is done once all serve. Both raise ReshapeFailed if one can't.
        """
        slots = self.restart_engines(nodes)
        for slot in slots:
            slot.trial = asyncio.get_running_loop().create_future()
        trials = asyncio.gather(*(slot.trial for slot in slots if slot.trial is not None))
        places = {slot.place for slot in slots}

        def up() -> bool:
            started, staying = {member.slot.place for member in self.members.started}, self.pods.staying
            return trials.done() or all(place in started or place[0] not in staying for place in places)

        trials.add_done_callback(lambda _: self._tasks.tell())
        await self._tasks.until(up)
        if trials.done():
            await trials
        return trials

    def restart_engines(self, nodes: Collection[str]) -> list[Slot]:
        """Starts engines of `tensor_parallel` devices on these nodes, as if the nodes were new."""
        staying = self.pods.staying
        return [slot for node_id in nodes if node_id in staying for slot in self._open(staying[node_id])]

    def close(self) -> None:
        """Ends all engines at once."""
        for member in self.members.values():
            self._cluster.kill(member.actor)
        self.members.clear()

    async def _watch_nodes(self) -> None:
        while True:
            await self.pods.refresh()
            self._fill()
            self._tasks.tell()
            await self.pods.begin_departures()
            await asyncio.sleep(WATCH_SECONDS)

    @contextmanager
    def reshaping(self) -> Iterator[None]:
        """Makes nodes that come or are taken back wait while the block reshapes engines: they get engines of the size that it leads to."""
        self._reshaping = True
        try:
            yield
        finally:
            self._reshaping = False
            self._fill()

    def _fill(self) -> None:
        """Starts engines on the devices that none is kept on, of all nodes that stay; a node with engines of another size is reshaped."""
        if self._reshaping:
            return
        for node_id, node in self.pods.staying.items():
            if not self._has_other_size(node_id):
                self._open(node)
            elif node_id not in self._shaping:
                self._shaping.add(node_id)
                self._tasks.spawn(self._shape(node_id))

    def _has_other_size(self, node_id: str) -> bool:
        return any(len(slot.devices) != self.tensor_parallel for slot in self.members.slots_in(node_id))

    async def _shape(self, node_id: str) -> None:
        """Gives a node that missed a reshape engines of the present size, unless it goes again or another reshape sees to it."""
        engines = [member.name for member in self.members.in_nodes([node_id])]
        await self._listener.drain(engines)
        if self._has_other_size(node_id) and not self._reshaping and node_id in self.pods.staying:
            await self.end_engines([node_id])
        else:
            self._listener.undrain(engines)
        self._shaping.discard(node_id)
        self._fill()

    def _open(self, node: RolloutNode) -> list[Slot]:
        """Starts to keep engines on those devices of the node that none is kept on."""
        wanted = slots_of(node, self.tensor_parallel, self._spec.rollout.devices_per_pod)
        taken = {device for slot in self.members.slots_in(node.node_id) for device in slot.devices}
        slots = [slot for slot in wanted if taken.isdisjoint(slot.devices)]
        for slot in slots:
            self.members.keep(slot)
            self._tasks.spawn(self._keep_engine(slot))
        return slots

    async def _keep_engine(self, slot: Slot) -> None:
        """Keeps one engine after another in one slot, as long as its node lives and stays, the slot is wanted, and no trial has failed.

        Raises SpecProblem if an engine can't start until a person changes something, and StoreUnreachable. The rule: once an engine of
        this size has started, spec and model allow that. What keeps a later one from starting belongs to its pod, and it has died.
        """
        node, devices = slot.node, slot.devices
        wait = RESTART_SECONDS
        while node.node_id in self.pods.staying and self.members.keeps(slot):
            name = engine_name(node.pod, devices, self._starts[node.pod, devices])
            self._starts[node.pod, devices] += 1
            config = engine_config(self._spec, name, devices)
            member = self.members[name] = Member(config, self._cluster.start(config, node, self._store), slot)
            try:
                await self._serve(member)
            except StoreUnreachable:
                raise
            except (RayError, EngineDead) as error:
                on_trial, problem = slot.on_trial, spec_problem_in(error)
                member.ended = member.ended or on_trial
                final = problem is not None and len(devices) not in self._proven
                await self._remove(member, error, final=final)
                if on_trial:
                    if await self.pods.stays(node):
                        slot.failed(f"{problem.reason}: {problem.message}" if problem else death_cause(error))
                        return
                    break
                if problem is not None and final:
                    raise problem from error
            if not member.ended:
                wait = RESTART_SECONDS if member.loaded is not None else min(2 * wait, MAX_RESTART_SECONDS)
                await asyncio.sleep(wait)
        slot.passed()
        self.members.give_up(slot)

    async def _serve(self, member: Member) -> None:
        """Starts the engine, gives it the last publication and takes what it finishes, until it dies."""
        await member.actor.start.remote()
        self._proven.add(member.config.tensor_parallel)
        member.state = MemberState.STARTED
        self._tasks.tell()
        if self.updates.publication is not None:
            await self.updates.update(member, self.updates.publication)
        while True:
            self._listener.finished_in(member, await member.actor.finished.remote())

    async def _remove(self, member: Member, error: BaseException, *, final: bool) -> None:
        """Removes an engine that has ended, and finds out whether it died by itself; `final`: its problem ends the job."""
        problem = spec_problem_in(error)
        reason = f"engine {member.name} died: {problem.message if problem else death_cause(error)}"
        member.state = MemberState.ENDED
        self._listener.stopped(member, (), reason)
        self._cluster.kill(member.actor)
        self.updates.end_groups(member)
        if member.tried is not None:  # else no sample has ever run in it
            await self._store.refuse(member.name)
        died = not final and not member.ended and await self.pods.stays(member.slot.node)
        if not member.ended:
            log.warning("%s", reason)
        if died:
            self.deaths += 1
            self.last_death = reason
        del self.members[member.name]
        self._listener.ended(member, reason, died=died)
        self._tasks.tell()
