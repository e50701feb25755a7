"""Keeps engines: one in each slot of each rollout node, started again when it dies."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from longboat_crds.job import RLJobSpec
from longboat_runtime.interfaces import FleetState, WeightPublication
from longboat_runtime.problems import spec_problem_in
from longboat_runtime.rollout.actor import EngineActor
from longboat_runtime.rollout.engine import EngineConfig, EngineDead, engine_config
from longboat_runtime.rollout.environment import NodeDevices
from longboat_runtime.rollout.recovery import Remedy, after_refusal, hopeless, refused_everywhere
from longboat_runtime.samples import FinishedSample, SampleId
from longboat_runtime.store.client import StoreClient, StoreUnreachable
from longboat_runtime.weights.gate import FetchFailed, PublicationRefused, UpdateFailed, calibration_key

log = logging.getLogger(__name__)

RESOURCE = "longboat-rollout"
POD_LABEL = "longboat.dev/pod"

# How often Ray is asked which nodes there are.
WATCH_SECONDS = 1.0
# Wait before an engine that has died is started again; doubles each time until one in that slot has served.
RESTART_SECONDS = 1.0
MAX_RESTART_SECONDS = 60.0
# How long an engine may take to shut down when it is restarted.
SHUTDOWN_SECONDS = 10.0
# How long after an engine's death its node is checked: when a pod ends, its engines end first.
NODE_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class RolloutNode:
    """A living Ray node with devices for engines. `pod` is its pod's name, or the node's where there are no pods."""

    node_id: str
    pod: str
    has: NodeDevices


def rollout_nodes(nodes: Iterable[Mapping[str, Any]]) -> dict[str, RolloutNode]:
    """The rollout nodes among `ray.nodes()`, by node id (pure)."""
    found = {}
    for node in nodes:
        resources = node.get("Resources", {})
        devices = int(resources.get(RESOURCE, 0))
        if not node.get("Alive") or devices == 0:
            continue
        node_id = node["NodeID"]
        pod = node.get("Labels", {}).get(POD_LABEL) or node.get("NodeName") or node_id
        found[node_id] = RolloutNode(node_id, pod, NodeDevices(devices, int(resources.get("GPU", 0))))
    return found


class MemberState(StrEnum):
    """STARTING until vLLM is up; STARTED: it waits for a publication or its data; REFUSED: the last one did not pass the gate."""

    STARTING = "starting"
    STARTED = "started"
    SERVING = "serving"
    REFUSED = "refused"
    ENDED = "ended"


@dataclass
class Slot:
    """The devices of a rollout node that one engine has. `refusals` counts publications that its engines refused in a row."""

    node: RolloutNode
    devices: tuple[int, ...]
    refusals: int = 0


def slots_of(node: RolloutNode, tensor_parallel: int, most: int) -> list[Slot]:
    """At most `most` of the node's devices in groups of `tensor_parallel` that follow each other; the rest stays idle (pure)."""
    starts = range(0, min(node.has.devices, most) - tensor_parallel + 1, tensor_parallel)
    return [Slot(node, tuple(range(start, start + tensor_parallel))) for start in starts]


def engine_name(pod: str, devices: Sequence[int], starts: int) -> str:
    """`<pod>/<device>` or `<pod>/<first>-<last>`, and how many engines these devices of the pod had before, if any (pure).

    A pod whose Ray node is started again has two nodes for a while, until Ray has noticed the end of the first: both count
    together, so that no two engines have one name.
    """
    first, last = devices[0], devices[-1]
    return f"{pod}/{first}" + (f"-{last}" if last != first else "") + (f".{starts}" if starts else "")


@dataclass
class Member:
    """An engine actor, its state, and what it holds. `turn` orders publications, of which `given` is the last one tried.

    `problem` says why it doesn't serve. `fetches` counts updates in a row whose data could not be fetched. `ended` is set before
    it is ended on purpose.
    """

    config: EngineConfig
    actor: Any
    slot: Slot
    state: MemberState = MemberState.STARTING
    given: WeightPublication | None = None
    loaded: WeightPublication | None = None
    parity: float = 0.0
    problem: str = ""
    ended: bool = False
    fetches: int = 0
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def name(self) -> str:
        return self.config.name

    @property
    def calibration(self) -> str:
        """Engines with the same key share the bound on their parity."""
        return calibration_key(self.config.dtype, self.config.tensor_parallel)


def start_actor(config: EngineConfig, node: RolloutNode, store: StoreClient) -> Any:
    """An actor on exactly that node, which takes as many of Ray's rollout resource as it has devices. It has no engine yet.

    Ray counts the devices, and which ones they are says `config`: accelerators too, of which it asks Ray for none.
    """
    return (
        ray.remote(EngineActor)
        .options(
            num_cpus=0,
            resources={RESOURCE: config.tensor_parallel},
            max_restarts=0,
            scheduling_strategy=NodeAffinitySchedulingStrategy(node.node_id, soft=False),
        )
        .remote(config, node.has, store)
    )


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


class EngineKeeper:
    """Runs on the driver's loop. All waiting ends with the first failure: a SpecProblem, a lost store or a bug.

    `calibrations` are parities that the gate was calibrated by (`weights.gate`), by `calibration_key`. `fetches` counts
    updates whose data could not be fetched, `deaths` engines that died by themselves.
    """

    def __init__(self, spec: RLJobSpec, store: StoreClient, listener: Listener) -> None:
        self.members: dict[str, Member] = {}
        self.publication: WeightPublication | None = None
        self.calibrations: dict[str, float] = {}
        self.fetches = 0
        self.deaths = 0
        self.last_death = ""
        self._spec = spec
        self._store = store
        self._listener = listener
        self._failure: BaseException | None = None
        self._news = asyncio.Event()
        self._nodes: dict[str, RolloutNode] = {}
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
            member.ended = True
            with suppress(RayError, EngineDead, TimeoutError):
                await asyncio.wait_for(member.actor.shutdown.remote(), SHUTDOWN_SECONDS)
            ray.kill(member.actor)

    def _fail_if_hopeless(self, publication: WeightPublication) -> None:
        """Ends all waiting once no engine can be expected to serve."""
        serving = sum(member.state is MemberState.SERVING for member in self.members.values())
        if hopeless([slot.refusals for slot in self._slots.values()], serving):
            self.fail(refused_everywhere(publication.version, self.refused))

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
        rollout = self._spec.rollout
        while True:
            nodes = rollout_nodes(await asyncio.to_thread(ray.nodes))
            new = [node for node_id, node in nodes.items() if node_id not in self._nodes]
            self._nodes = nodes
            for node in new:
                for slot in slots_of(node, rollout.tensor_parallel, rollout.devices_per_pod):
                    self._spawn(self._keep_engine(slot))
            await asyncio.sleep(WATCH_SECONDS)

    async def _keep_engine(self, slot: Slot) -> None:
        """One engine after another in one slot, as long as its node lives."""
        node, devices = slot.node, slot.devices
        self._slots[node.node_id, devices] = slot
        wait = RESTART_SECONDS
        while node.node_id in self._nodes:
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
                await self._remove(member, error)
                if (problem := spec_problem_in(error)) is not None:
                    raise problem from error
            if not member.ended:
                wait = RESTART_SECONDS if member.loaded is not None else min(2 * wait, MAX_RESTART_SECONDS)
                await asyncio.sleep(wait)
        del self._slots[node.node_id, devices]

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


def last_line(error: BaseException) -> str:
    """Ray's errors carry a whole traceback; its last line names the cause."""
    return (str(error).strip() or type(error).__name__).splitlines()[-1]
