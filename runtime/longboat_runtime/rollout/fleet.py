"""All engines of a job behind one router: engines come and go with rollout pods, and no sample is forgotten."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator, Collection, Coroutine, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from typing import Any

from ray.exceptions import RayError

from longboat_crds.job import RLJobSpec
from longboat_runtime.rollout.background import BackgroundTasks
from longboat_runtime.rollout.engine import EngineDead
from longboat_runtime.rollout.engine_client import EngineClient
from longboat_runtime.rollout.keeper import EngineKeeper
from longboat_runtime.rollout.load import Load, PodLoad
from longboat_runtime.rollout.member import Member, MemberState, ReshapeFailed
from longboat_runtime.rollout.protocol import FleetState, PublicationReport, ReshapePhase, ReshapeReport
from longboat_runtime.rollout.ray_cluster import RayCluster, death_cause
from longboat_runtime.rollout.router import Router
from longboat_runtime.rollout.turn_router import TurnEngine, TurnEngines
from longboat_runtime.samples import (
    FinishedSample,
    FinishReason,
    FleetReport,
    LostSample,
    MovedSample,
    SampleId,
    SampleRequest,
)
from longboat_runtime.store.client import StoreClient
from longboat_runtime.weights.gate import UpdateFailed
from longboat_runtime.weights.publication import WeightPublication

log = logging.getLogger(__name__)

# How long an engine may take to answer `loads` or `stacks`, or to end.
CALL_SECONDS = 10.0


class RayRolloutFleet:
    """`RolloutFleet` on Ray. Everything runs on the driver's loop.

    A sample is in one place: waiting here for an engine, running in one (the router knows), or reported. What ran in an engine
    that died or whose update failed is reported lost. A sample moves in three steps: its engine, which gets nothing new, is told to
    stop it (`_moving`); it comes back and waits here with its tokens in the store (`_moved`); an engine continues it.

    Turns go from recorders to engines and back without the fleet. It says which engines take some (`_turn_engines`), and has those that
    are drained end theirs (`_ending_turns`).

    Calls that wait for engines raise SpecProblem if those can't start until a person changes something, and StoreUnreachable if the
    store is gone.
    """

    def __init__(self, spec: RLJobSpec, store: StoreClient, cluster: RayCluster | None = None) -> None:
        self._cluster = cluster or RayCluster()
        self._tasks = BackgroundTasks()
        self._keeper = EngineKeeper(spec, store, self, self._cluster, self._tasks)
        self._router = Router()
        self._waiting: dict[SampleId, SampleRequest] = {}
        self._running: dict[SampleId, SampleRequest] = {}
        self._draining: Counter[str] = Counter()
        self._moving: set[SampleId] = set()
        self._moved: dict[SampleId, str] = {}
        self._events: list[FleetReport] = []
        self._turn_engines = TurnEngines()
        self._ending_turns: Counter[str] = Counter()
        self._refusing_turns: set[str] = set()
        self._publishing = False

    async def submit(self, requests: Sequence[SampleRequest]) -> None:
        """Requests wait here until an engine serves. One that no engine can take makes `finished` raise ValueError."""
        self._keeper.watch()
        self._waiting.update({request.id: request for request in requests})
        self._dispatch()

    async def abort(self, ids: Sequence[SampleId]) -> None:
        """Aborts samples: running ones come back with their tokens, waiting ones with what they had before; others are passed over."""
        self._moving.difference_update(ids)
        for engine, samples in self._router.engines_of(ids).items():
            self._tasks.spawn(self._abort_in(self._keeper.members[engine], samples))
        for sample in ids:
            self._moved.pop(sample, None)
        self._report([self._waiting.pop(sample).unstarted for sample in ids if sample in self._waiting])

    def drain(self, engines: Collection[str]) -> Coroutine[Any, Any, None]:
        """See protocol.RolloutFleet. Sends nothing new there from this call on. Without another open engine, samples wait here for one."""
        draining = [engine for engine in engines if engine in self._keeper.members]
        self._draining.update(draining)
        for engine in draining:
            self._router.drain(engine)
            if running := self._router.running(engine):
                self._moving.update(running)
                self._tasks.spawn(self._abort_in(self._keeper.members[engine], running))
            if self._keeper.members[engine].config.parsers is not None:
                self._withdraw(engine)
                self._ending_turns[engine] += 1
                self._refusing_turns.add(engine)
                self._tasks.spawn(self._end_turns(self._keeper.members[engine]))
        return self._tasks.until(
            lambda: not any(self._router.count(engine) or self._ending_turns[engine] for engine in draining)
        )

    def undrain(self, engines: Collection[str]) -> None:
        """Takes one call of `drain` back, also one that hasn't returned and never will."""
        for engine in engines:
            if engine in self._draining:
                self._draining[engine] -= 1
                self._draining += Counter()  # without those that nobody drains any more
                if self._keeper.members[engine].state is MemberState.SERVING:
                    self.opened(self._keeper.members[engine])

    def release(self, pods: Collection[str]) -> None:
        """See protocol.RolloutFleet."""
        self._keeper.watch()
        self._keeper.release(pods)

    @property
    def pods(self) -> Mapping[str, PodLoad]:
        """See protocol.RolloutFleet."""
        loads = dict.fromkeys(self._keeper.pods.names, PodLoad(0, 0))
        for member in self._keeper.members.values():
            if (load := loads.get(member.slot.node.pod)) is not None:
                running = self._router.count(member.name)
                serving = member.state is MemberState.SERVING
                loads[member.slot.node.pod] = PodLoad(load.serving + serving, load.running + running)
        return loads

    async def reshape(self, tensor_parallel: int, *, one_by_one: bool) -> ReshapeReport:
        """See protocol.RolloutFleet."""
        before, seconds = self._keeper.tensor_parallel, dict.fromkeys(ReshapePhase, 0.0)
        nodes, done = [*self._keeper.pods.staying], []
        with self._keeper.reshaping():
            self._keeper.tensor_parallel = tensor_parallel
            try:
                for group in [[node] for node in nodes] if one_by_one else [nodes]:
                    done += group
                    await self._reshape([node for node in group if node in self._keeper.pods.staying], seconds)
            except ReshapeFailed as failed:
                self._keeper.tensor_parallel = before
                await self._keeper.end_engines(done)
                self._keeper.restart_engines(done)
                return ReshapeReport(before, seconds, failed.reason, unfit=failed.unfit)
        return ReshapeReport(tensor_parallel, seconds)

    async def _reshape(self, nodes: Sequence[str], seconds: dict[ReshapePhase, float]) -> None:
        """Replaces the engines of these nodes; returns once the new ones serve, but for nodes that have gone meanwhile.

        The old ones end before others start on their devices. Adds the seconds of each phase that succeeds, and logs its beginning.
        Raises ReshapeFailed.
        """
        engines = self._keeper.members.in_nodes(nodes)
        pods = sorted({member.slot.node.pod for member in engines})
        subject = pods[0] if len(pods) == 1 else f"{len(pods)} pods"

        @contextmanager
        def during(phase: ReshapePhase) -> Iterator[None]:
            log.info("reshape of %s: %s", subject, phase)
            began = time.monotonic()
            yield
            seconds[phase] += time.monotonic() - began

        with during(ReshapePhase.DRAIN):
            await self.drain([member.name for member in engines])
        with during(ReshapePhase.END):
            await self._keeper.end_engines(nodes)
        with during(ReshapePhase.START):
            served = await self._keeper.start_engines(nodes)
        with during(ReshapePhase.WEIGHTS):
            await served

    async def finished(self) -> list[FleetReport]:
        self._keeper.watch()
        await self._tasks.until(lambda: bool(self._events))
        events, self._events = self._events, []
        return events

    async def publish(self, publication: WeightPublication) -> PublicationReport:
        """Waits until there is an engine to publish to. Engines that are still starting get the publication when they are up."""
        self._keeper.watch()
        began = time.monotonic()
        self._keeper.updates.publication = publication
        await self.wait_started(1)
        members = self._keeper.members.started
        self._publishing = True
        try:
            await self._keeper.updates.update_all(members, publication)
        finally:
            self._publishing = False
            self._dispatch()
            self._tasks.tell()
        serving = [member for member in members if member.loaded is publication]
        # One that refused may have been ended since, to be restarted.
        refused = [member for member in members if member.refused is publication and member.loaded is not publication]
        return PublicationReport(
            version=publication.version,
            seconds=time.monotonic() - began,
            bytes=publication.payload.nbytes,
            parity=max((member.parity for member in serving), default=0.0),
            serving=tuple(sorted(member.name for member in serving)),
            refused={member.name: member.problem for member in refused},
            direct=sum(member.direct for member in serving),
        )

    async def changed(self, previous: FleetState) -> FleetState:
        self._keeper.watch()
        await self._tasks.until(lambda: self._keeper.state != previous)
        return self._keeper.state

    async def turn_engines(self, previous: TurnEngines) -> TurnEngines:
        """See protocol.RolloutFleet.

        Not during a publication: where none served before, the first engine to load its weights would get all trajectories.
        """
        self._keeper.watch()
        await self._tasks.until(lambda: not self._publishing and self._turn_engines.number != previous.number)
        return self._turn_engines

    @property
    def tensor_parallel(self) -> int:
        return self._keeper.tensor_parallel

    def start_in(self, tensor_parallel: int) -> None:
        """Sets how many devices each engine is started with. To be called before anything else."""
        self._keeper.tensor_parallel = tensor_parallel

    @property
    def calibrations(self) -> Mapping[str, float]:
        return self._keeper.updates.calibrations

    def calibrate(self, calibrations: Mapping[str, float]) -> None:
        self._keeper.updates.calibrations.update(calibrations)

    async def loads(self) -> dict[str, Load]:
        """Returns the loads since the last call, by name, of the engines that are up and answer."""
        return await self._ask("take_load", self._keeper.members.started)

    async def stacks(self) -> dict[str, str]:
        """Returns the stacks of all threads of each engine's actor that answers, also of one that is still starting."""
        return await self._ask("stacks", [*self._keeper.members.values()])

    async def wait_started(self, engines: int) -> None:
        """Waits until so many engines are up. A run can be repeated bit for bit only if each round has the same engines."""
        self._keeper.watch()
        await self._tasks.until(lambda: len(self._keeper.members.started) >= engines)

    async def close(self) -> None:
        """Ends all engines; what runs in them is forgotten."""
        await self._ask("shutdown", self._keeper.members.started)
        await self._tasks.close()
        self._keeper.close()

    # Calls of the keeper

    def opened(self, member: Member) -> None:
        if member.name not in self._draining:
            self._router.add(member.name)
            self._dispatch()
            if member.config.parsers is not None and member.name not in self._turn_engines.engines:
                if member.name in self._refusing_turns:
                    self._tasks.spawn(self._take_turns(member))
                else:
                    # At once, so that recorders learn of all engines of a publication together.
                    self._add_to_turns(member)

    def stopped(self, member: Member, lost: Sequence[SampleId] | None, reason: str) -> None:
        self._router.drain(member.name)
        self._withdraw(member.name)
        self._lose(member.name, self._router.running(member.name) if lost is None else lost, reason)

    def ended(self, member: Member, reason: str, *, died: bool) -> None:
        self._lose(member.name, self._router.running(member.name), reason, engine_died=died)
        self._router.remove(member.name)
        self._withdraw(member.name)
        self._refusing_turns.discard(member.name)
        del self._draining[member.name]

    def finished_in(self, member: Member, samples: Sequence[FinishedSample]) -> None:
        reported = []
        for sample in samples:
            moving = sample.id in self._moving and sample.finish_reason is FinishReason.ABORT
            request = self._ended(member.name, sample.id)
            if request is not None and moving:
                self._waiting[sample.id] = replace(request, begun=sample.spans)
                self._moved[sample.id] = member.name
            elif request is not None:
                reported.append(sample)
        self._dispatch()
        self._report(reported)

    # Turns

    async def _take_turns(self, member: Member) -> None:
        """Has an engine that was drained take turns again, and says so, unless it has stopped serving or is drained by then."""
        async with self._in_turn(member):
            await member.actor.take_turns.remote()
            if member.name not in self._draining:
                self._refusing_turns.discard(member.name)
                if member.state is MemberState.SERVING:
                    self._add_to_turns(member)

    async def _end_turns(self, member: Member) -> None:
        """Has an engine end its turns, which continue elsewhere."""
        try:
            async with self._in_turn(member):
                await member.actor.refuse_turns.remote()
        finally:
            self._ending_turns[member.name] -= 1
            self._ending_turns += Counter()  # without those that have ended
            self._tasks.tell()

    def _add_to_turns(self, member: Member) -> None:
        """Says that an engine takes turns."""
        self._serve_turns({**self._turn_engines.engines, member.name: EngineClient(member.actor)})

    def _withdraw(self, engine: str) -> None:
        """Says that an engine takes no turns."""
        engines = {name: client for name, client in self._turn_engines.engines.items() if name != engine}
        if len(engines) < len(self._turn_engines.engines):
            self._serve_turns(engines)

    def _serve_turns(self, engines: Mapping[str, TurnEngine]) -> None:
        self._turn_engines = TurnEngines(self._turn_engines.number + 1, engines)
        self._tasks.tell()

    # Samples

    def _dispatch(self) -> None:
        """Sends what waits to engines, in one call for each, so that an engine can start all of it in one batch.

        Not during a publication: where none served before, the first engine to load its weights would get everything.
        """
        if self._publishing or not self._waiting or not self._router.open:
            return
        requests, self._waiting = self._waiting, {}
        self._running.update(requests)
        for engine, ids in self._router.route(list(requests)).items():
            self._report_moves([requests[sample] for sample in ids if sample in self._moved], engine)
            self._tasks.spawn(self._submit_to(self._keeper.members[engine], [requests[sample] for sample in ids]))

    def _report_moves(self, requests: Sequence[SampleRequest], target: str) -> None:
        self._report(
            [
                MovedSample(request.id, request.begun, self._moved.pop(request.id), target, request.evaluation)
                for request in requests
            ]
        )

    async def _submit_to(self, member: Member, requests: Sequence[SampleRequest]) -> None:
        async with self._in_turn(member):
            try:
                lost = await member.actor.submit.remote(requests)
            except ValueError as error:
                self._tasks.fail(error)
            except UpdateFailed as failed:
                self._lose(member.name, [request.id for request in requests], failed.reason)
            else:
                self._lose(member.name, lost, "the store has lost its first tokens", with_begun=True)

    async def _abort_in(self, member: Member, ids: Sequence[SampleId]) -> None:
        async with self._in_turn(member):
            await member.actor.abort.remote(ids)

    @asynccontextmanager
    async def _in_turn(self, member: Member) -> AsyncIterator[None]:
        """Lets the block make its call of an engine once earlier ones have returned, since Ray may run a later one first.

        If it fails, the engine is dead, or is ended here; `ended` then reports what ran in it, and whether it died on its own.
        """
        async with member.calls:
            try:
                yield
            except EngineDead:
                pass  # `finished` raises it too
            except RayError as error:
                if member.name in self._keeper.members:
                    log.warning("engine %s failed in a call: %s", member.name, death_cause(error))
                    self._cluster.kill(member.actor)

    def _ended(self, engine: str, sample: SampleId) -> SampleRequest | None:
        """Takes a sample out of those that run in `engine` and returns its request; None for a late or duplicate report."""
        if not self._router.finished(engine, sample):
            return None
        self._moving.discard(sample)
        return self._running.pop(sample)

    def _lose(
        self, engine: str, ids: Sequence[SampleId], reason: str, *, engine_died: bool = False, with_begun: bool = False
    ) -> None:
        """Reports samples that ran in `engine` as lost, but not the tokens that they began with there, unless `with_begun`."""
        ended = [request for sample in ids if (request := self._ended(engine, sample)) is not None]
        self._report(
            [
                LostSample(request.id, reason, request.evaluation, engine_died, () if with_begun else request.begun)
                for request in ended
            ]
        )

    def _report(self, events: Sequence[FleetReport]) -> None:
        self._events += events
        self._tasks.tell()

    async def _ask(self, method: str, members: Sequence[Member]) -> dict[str, Any]:
        """Returns the answers of engines, by name, to a call without arguments; one that fails or is late is left out."""

        async def ask(member: Member) -> Any:
            async with asyncio.timeout(CALL_SECONDS):
                return await getattr(member.actor, method).remote()

        answers = await asyncio.gather(*map(ask, members), return_exceptions=True)
        named = zip(members, answers, strict=True)
        return {member.name: answer for member, answer in named if not isinstance(answer, BaseException)}
