"""Keeps engines: one in each slot of each rollout node, started again when it dies."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from contextlib import suppress
from typing import Any, Protocol

import ray
from ray.exceptions import RayError
from ray.experimental.internal_kv import internal_kv_get_gcs_client

from longboat_crds.job import RLJobSpec
from longboat_runtime import departures
from longboat_runtime.interfaces import FleetState, WeightPublication
from longboat_runtime.problems import spec_problem_in
from longboat_runtime.rollout.engine import EngineDead, engine_config
from longboat_runtime.rollout.member import (
    Member,
    MemberState,
    RolloutNode,
    Slot,
    engine_name,
    last_line,
    rollout_nodes,
    slots_of,
    start_actor,
)
from longboat_runtime.rollout.recovery import Remedy, after_refusal, hopeless, refused_everywhere
from longboat_runtime.samples import FinishedSample, SampleId
from longboat_runtime.store.client import StoreClient, StoreUnreachable
from longboat_runtime.weights.gate import FetchFailed, PublicationRefused, UpdateFailed

log = logging.getLogger(__name__)

# How often Ray is asked which nodes there are.
WATCH_SECONDS = 1.0
# Wait before an engine that has died is started again; doubles each time until one in that slot has served.
RESTART_SECONDS = 1.0
MAX_RESTART_SECONDS = 60.0
# How long an engine may take to shut down when it is restarted.
SHUTDOWN_SECONDS = 10.0
# How long after an engine's death its node is checked: when a pod ends, its engines end first.
NODE_SECONDS = 2.0


class Listener(Protocol):
    """Is told what becomes of engines and their samples."""

    def opened(self, member: Member) -> None:
        """The engine serves the last publication."""

    def stopped(self, member: Member, lost: Sequence[SampleId], reason: str) -> None:
        """The engine serves nothing for now; `lost` ran in it."""

    def ended(self, member: Member, reason: str, *, died: bool) -> None:
        """The engine is gone, with all that ran in it; `died`: by itself, in a pod that is still there."""

    def finished_in(self, member: Member, samples: Sequence[FinishedSample]) -> None:
        """The store holds these samples."""

    async def drain(self, engines: Collection[str]) -> None:
        """Has what runs in these engines continue elsewhere; returns once they have nothing left."""


class EngineKeeper:
    """Runs on the driver's loop. All waiting ends with the first failure: a SpecProblem, a lost store or a bug.

    Nodes get engines of `tensor_parallel` devices each. `calibrations` are parities that the gate was calibrated by (`weights.gate`), by `calibration_key`. `fetches` counts
    updates whose data could not be fetched, `deaths` engines that died by themselves.
    """

    def __init__(self, spec: RLJobSpec, store: StoreClient, listener: Listener) -> None:
        self.members: dict[str, Member] = {}
        self.publication: WeightPublication | None = None
        self.calibrations: dict[str, float] = {}
        self.tensor_parallel = spec.rollout.tensor_parallel
        self.fetches = 0
        self.deaths = 0
        self.last_death = ""
        self._spec = spec
        self._store = store
        self._listener = listener
        self._failure: BaseException | None = None
        self._news = asyncio.Event()
        self._nodes: dict[str, RolloutNode] = {}
        self._leaving: set[str] = set()
        self._starts: Counter[tuple[str, tuple[int, ...]]] = Counter()
        self._slots: dict[tuple[str, tuple[int, ...]], Slot] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def started(self) -> list[Member]:
        """Engines that are up, serving or not."""
        down = (MemberState.STARTING, MemberState.ENDED)
        return [member for member in self.members.values() if member.state not in down]

    @property
    def refused(self) -> Mapping[str, str]:
        """Why engines that are up refused the last publication, by name."""
        members = self.members.values()
        return {member.name: member.problem for member in members if member.state is MemberState.REFUSED}

    @property
    def state(self) -> FleetState:
        serving = sorted(member.name for member in self.members.values() if member.state is MemberState.SERVING)
        waiting = {m.name: m.problem for m in self.started if m.state is MemberState.STARTED and m.problem}
        return FleetState(tuple(serving), self.refused, waiting, self.fetches, self.deaths, self.last_death)

    def watch(self) -> None:
        """Begins to look for rollout nodes, once."""
        if not self._tasks:
            self._spawn(self._watch_nodes())

    def tell(self) -> None:
        """Wakes everyone who waits in `until`."""
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

    async def update(self, member: Member, publication: WeightPublication) -> None:
        """Has an engine load the publication and serve, again if it refuses. One that still doesn't serve is taken care of."""
        async with member.turn:
            if member.given is not publication:
                member.given = publication
                await self._give(member, publication)

    async def _give(self, member: Member, publication: WeightPublication) -> None:
        calibrated = self.calibrations.get(member.calibration)
        while True:
            try:
                member.parity = await member.actor.update_weights.remote(publication, calibrated)
            except FetchFailed as failed:
                self.fetches += 1
                self._stop_serving(member, MemberState.STARTED, failed)
                self._spawn(self._fetch_again(member, publication))
                return
            except PublicationRefused as refused:
                self._stop_serving(member, MemberState.REFUSED, refused)
                if member.slot.on_trial:
                    member.slot.failed(refused.reason)
                    return
                member.slot.refusals += 1
                self._fail_if_hopeless(publication)
                following = after_refusal(member.slot.refusals)
                if following.remedy is Remedy.RESTART:
                    self._spawn(self._restart(member, following.wait))
                    return
                if publication is not self.publication:
                    return  # a newer one follows
            except (RayError, EngineDead) as error:
                log.warning("engine %s died while it was given weights: %s", member.name, last_line(error))
                return
            else:
                member.loaded = publication
                self._serves(member, first=calibrated is None)
                return

    def _serves(self, member: Member, *, first: bool) -> None:
        """The gate has passed; the `first` engines of their kind to pass it calibrate it, by their largest parity."""
        if member.state is MemberState.ENDED:
            return  # it died as soon as it had answered
        if first:
            key = member.calibration
            self.calibrations[key] = max(member.parity, self.calibrations.get(key, 0.0))
        member.slot.refusals, member.fetches, member.problem = 0, 0, ""
        member.state = MemberState.SERVING
        member.slot.passed()
        self._listener.opened(member)
        self.tell()

    def _stop_serving(self, member: Member, state: MemberState, failed: UpdateFailed) -> None:
        log.error("%s", failed.reason)
        member.state, member.problem, member.loaded = state, failed.reason, None
        self._listener.stopped(member, failed.lost, failed.reason)
        self.tell()

    async def _fetch_again(self, member: Member, publication: WeightPublication) -> None:
        """Tries again after a while, unless a newer publication has been sent to the engine meanwhile."""
        member.fetches += 1
        await asyncio.sleep(min(RESTART_SECONDS * 2.0 ** min(member.fetches, 32), MAX_RESTART_SECONDS))
        if self.publication is publication and member.state is MemberState.STARTED:
            member.given = None
            await self.update(member, publication)

    async def _restart(self, member: Member, wait: float) -> None:
        """Ends an engine that refused, unless it serves a newer publication after `wait` seconds; its slot starts another."""
        await asyncio.sleep(wait)
        async with member.turn:
            if member.state is not MemberState.REFUSED:
                return
            log.warning("engine %s is restarted", member.name)
            await self._end(member)

    def _fail_if_hopeless(self, publication: WeightPublication) -> None:
        """Ends all waiting once no engine can be expected to serve."""
        serving = sum(member.state is MemberState.SERVING for member in self.members.values())
        if hopeless([slot.refusals for slot in self._slots.values()], serving):
            self.fail(refused_everywhere(publication.version, self.refused))

    @property
    def nodes(self) -> list[str]:
        """Ids of the rollout nodes that stay, in the order in which they came."""
        return [node for node in self._nodes if node not in self._leaving]

    def engines_of(self, nodes: Collection[str]) -> list[Member]:
        """The engines of these nodes, started or not."""
        return [member for member in self.members.values() if member.slot.node.node_id in nodes]

    async def end_engines(self, nodes: Collection[str]) -> None:
        """Ends the engines of these nodes, which get no others; returns once they are gone."""
        self._slots = {place: slot for place, slot in self._slots.items() if slot.node.node_id not in nodes}
        members = self.engines_of(nodes)
        await asyncio.gather(*(self._end(member) for member in members))
        await self.until(lambda: not any(member.name in self.members for member in members))

    async def start_engines(self, nodes: Collection[str]) -> Callable[[], Coroutine[Any, Any, None]]:
        """Starts engines of `tensor_parallel` devices on the free devices of these nodes, and waits until they are up.

        Returns what waits until all serve. Both raise ReshapeFailed if one can't.
        """
        slots = [slot for node in nodes if node in self.nodes for slot in self._open(self._nodes[node])]
        for slot in slots:
            slot.trial = asyncio.get_running_loop().create_future()
        trials = asyncio.gather(*(slot.trial for slot in slots if slot.trial is not None))
        places = {slot.place for slot in slots}

        def up() -> bool:
            started = {member.slot.place for member in self.started}
            return trials.done() or places <= started | {place for place in places if place[0] not in self._nodes}

        trials.add_done_callback(lambda _: self.tell())
        await self.until(up)
        if trials.done():
            await trials

        async def served() -> None:
            await trials

        return served

    def restart_engines(self, nodes: Collection[str]) -> None:
        """Starts engines of `tensor_parallel` devices on these nodes, as if the nodes were new."""
        for node in nodes:
            if node in self.nodes:
                self._open(self._nodes[node])

    async def _end(self, member: Member) -> None:
        """Ends an engine on purpose."""
        member.ended = True
        with suppress(RayError, EngineDead, TimeoutError):
            await asyncio.wait_for(member.actor.shutdown.remote(), SHUTDOWN_SECONDS)
        ray.kill(member.actor)

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
                self._open(node)
            for node in await self._asking():
                self._leaving.add(node.node_id)
                self._spawn(self._let_go(node))
            await asyncio.sleep(WATCH_SECONDS)

    async def _asking(self) -> list[RolloutNode]:
        """Nodes whose pods have asked to go since the last call."""
        try:
            pods = await asyncio.to_thread(lambda: set(departures.asking(internal_kv_get_gcs_client())))
        except RayError as error:
            log.warning("the Ray head doesn't say which pods have to go: %s", last_line(error))
            return []
        return [node for node in self._nodes.values() if node.pod in pods and node.node_id not in self._leaving]

    async def _let_go(self, node: RolloutNode) -> None:
        """Frees the pod of a node: its engines get nothing more, and what runs there continues elsewhere. They aren't replaced."""
        log.info("pod %s has to go", node.pod)
        self._slots = {place: slot for place, slot in self._slots.items() if slot.node.node_id != node.node_id}
        members = self.engines_of([node.node_id])
        for member in members:
            member.ended = True
        await self._listener.drain([member.name for member in members])
        await asyncio.to_thread(lambda: departures.let_go(internal_kv_get_gcs_client(), node.pod))

    def _open(self, node: RolloutNode) -> list[Slot]:
        """Starts to keep engines on those devices of the node that none is kept on."""
        wanted = slots_of(node, self.tensor_parallel, self._spec.rollout.devices_per_pod)
        taken = {device for slot in self._slots.values() if slot.node is node for device in slot.devices}
        slots = [slot for slot in wanted if taken.isdisjoint(slot.devices)]
        for slot in slots:
            self._slots[slot.place] = slot
            self._spawn(self._keep_engine(slot))
        return slots

    async def _keep_engine(self, slot: Slot) -> None:
        """One engine after another in one slot, as long as its node lives and the slot is wanted."""
        node, devices = slot.node, slot.devices
        wait = RESTART_SECONDS
        while node.node_id in self._nodes and self._slots.get(slot.place) is slot:
            name = engine_name(node.pod, devices, self._starts[node.pod, devices])
            self._starts[node.pod, devices] += 1
            config = engine_config(self._spec, name, devices)
            actor = start_actor(config, node, self._store)
            member = Member(config, actor, slot)
            self.members[member.name] = member
            try:
                await self._serve(member)
            except StoreUnreachable:
                raise
            except (RayError, EngineDead) as error:
                on_trial = slot.on_trial
                member.ended = member.ended or on_trial
                await self._remove(member, error)
                problem = spec_problem_in(error)
                if on_trial:
                    slot.failed(str(problem) if problem else last_line(error))
                    return
                if problem is not None:
                    raise problem from error
            if not member.ended:
                wait = RESTART_SECONDS if member.loaded is not None else min(2 * wait, MAX_RESTART_SECONDS)
                await asyncio.sleep(wait)
        slot.passed()
        if self._slots.get(slot.place) is slot:
            del self._slots[slot.place]

    async def _serve(self, member: Member) -> None:
        """Starts the engine, gives it the last publication and takes what it finishes, until it dies."""
        await member.actor.start.remote()
        member.state = MemberState.STARTED
        self.tell()
        if self.publication is not None:
            await self.update(member, self.publication)
        while True:
            self._listener.finished_in(member, await member.actor.finished.remote())

    async def _remove(self, member: Member, error: BaseException) -> None:
        """Removes an engine that has ended, and finds out whether it died by itself."""
        reason = f"engine {member.name} died: {last_line(error)}"
        member.state = MemberState.ENDED
        self._listener.stopped(member, (), reason)
        ray.kill(member.actor)
        died = spec_problem_in(error) is None and not member.ended and await self._outlived_by_node(member)
        if not member.ended:
            log.warning("%s", reason)
        if died:
            self.deaths += 1
            self.last_death = reason
        del self.members[member.name]
        self._listener.ended(member, reason, died=died)
        self.tell()

    async def _outlived_by_node(self, member: Member) -> bool:
        """Whether the engine died alone and not with its node, whose end Ray notices a moment later."""
        await asyncio.sleep(NODE_SECONDS)
        return member.slot.node.node_id in rollout_nodes(await asyncio.to_thread(ray.nodes))
