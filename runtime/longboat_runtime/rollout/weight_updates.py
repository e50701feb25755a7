"""Updates of engines to the published weights, and remedies for engines that refuse or can't get them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Mapping, Sequence

from ray.exceptions import RayError

from longboat_crds.problems import SpecProblem
from longboat_crds.reasons import Reason
from longboat_crds.rollout import PublicationMode
from longboat_runtime.rollout.background import BackgroundTasks
from longboat_runtime.rollout.delivery import TooSlow, deliver
from longboat_runtime.rollout.direct import DirectRound, PodGroups
from longboat_runtime.rollout.engine import EngineDead
from longboat_runtime.rollout.member import Listener, Member, Members, MemberState
from longboat_runtime.rollout.ray_cluster import RayCluster, death_cause
from longboat_runtime.rollout.weight_rounds import LateRounds, WeightRound
from longboat_runtime.samples import SampleId
from longboat_runtime.weights.gate import FetchFailed, PublicationRefused, UpdateFailed
from longboat_runtime.weights.publication import WeightPublication

log = logging.getLogger(__name__)

# The pause before a further try to fetch weights, which doubles with each, and the longest.
FETCH_SECONDS = 1.0
MAX_FETCH_SECONDS = 60.0
# After so many refusals in a row every remedy has been tried: the weights were sent again, and the engine was restarted.
EXHAUSTED = 3
# The pause before the first restart after that, in seconds, which doubles with each, and the longest.
BACKOFF_SECONDS = 5.0
MAX_BACKOFF_SECONDS = 300.0

_CURE = (
    "If checksums differ, weights are damaged on their way: look at memory and network of these nodes. If log-probs do, engine and "
    "trainer compute different things from the same bytes: try rollout.enforceEager: true, rollout.tensorParallel: 1 or "
    "another model.dtype, or a runtime with a vLLM that knows this architecture."
)


def seconds_to_restart(refusals: int) -> float | None:
    """Returns how long after the `refusals`-th refusal in a row (from 1) of one slot its engine is restarted; None if it isn't (pure).

    First the publication is sent again, which cures what went wrong on the way. Then the engine is restarted, which cures a damaged one.
    Then it is restarted after pauses that double up to a limit, so that an engine that can't be cured costs little. A publication that
    passes resets the count. A newer one doesn't wait for the end of a pause.
    """
    if refusals < EXHAUSTED - 1:
        return None
    pauses = refusals - EXHAUSTED
    return 0.0 if pauses < 0 else min(BACKOFF_SECONDS * 2.0 ** min(pauses, 32), MAX_BACKOFF_SECONDS)


def all_engines_refused(refusals: Collection[int], serving: int) -> bool:
    """Whether no engine can be expected to serve: none does, and in each slot (`refusals` are those in a row) everything has been tried."""
    return not serving and bool(refusals) and min(refusals) >= EXHAUSTED


def refused_everywhere(version: int, reasons: Mapping[str, str]) -> SpecProblem:
    """Returns the problem that fails a job in the case of `all_engines_refused`; `reasons` by engine name (pure)."""
    each = "; ".join(reason for _, reason in sorted(reasons.items()))
    message = f"No engine serves the weights of step {version}, although each was sent them again and was restarted: {each}. {_CURE}"
    return SpecProblem(Reason.ENGINE_REFUSED, None, message)


def _broadcast_to(members: Sequence[Member], free: Sequence[Member]) -> dict[str, list[Member]]:
    """Returns the engines, by pod, of the pods that can be broadcast to (pure).

    All engines of such a pod are free, and none has failed to fetch weights since it last served.
    """
    pods: dict[str, list[Member]] = {}
    for member in members:
        pods.setdefault(member.slot.node.pod, []).append(member)
    ready = {member.name for member in free if not member.fetches}
    return {pod: engines for pod, engines in pods.items() if ready.issuperset(engine.name for engine in engines)}


class WeightUpdates:
    """Has engines load the newest `publication` and serve it, and applies remedies to those that don't.

    `calibrations` are parities that the gate was calibrated by (`weights.gate`), by `calibration_key`. `fetches` counts updates whose
    data could not be fetched.
    """

    def __init__(
        self, members: Members, listener: Listener, cluster: RayCluster, tasks: BackgroundTasks, mode: PublicationMode
    ) -> None:
        self.publication: WeightPublication | None = None
        self.calibrations: dict[str, float] = {}
        self.fetches = 0
        self._late = LateRounds()
        self._groups = PodGroups(mode)
        self._members, self._listener, self._cluster, self._tasks = members, listener, cluster, tasks

    async def update_all(self, members: Sequence[Member], publication: WeightPublication) -> None:
        """Has all these engines load the publication together, as `update` does with one.

        One that is still busy with an earlier publication gets this one by itself: the others don't wait for it.
        """
        free = [member for member in members if not member.turn.locked()]
        groups = await self._groups.join(_broadcast_to(members, free), publication.payload)
        direct = {member.name for group in groups.values() for member in group.members}
        rounds: dict[str, WeightRound] = dict.fromkeys(direct, DirectRound(publication.payload, groups.values()))
        stored = [member.name for member in free if member.name not in direct]
        if stored:
            round_ = WeightRound(publication.payload, stored)
            rounds |= dict.fromkeys(stored, round_)
            self._late.follow(round_)
        await asyncio.gather(*(self.update(member, publication, rounds.get(member.name)) for member in members))
        for pod, group in groups.items():
            if all(member.direct and member.loaded is publication for member in group.members):
                self._groups.passed(pod)
            else:
                self._groups.failed(pod)
                self.end_groups(group.members[0])

    def end_groups(self, member: Member) -> None:
        """Ends the groups of an engine that has ended or can't be broadcast to."""
        if (group := self._groups.discard(member)) is not None:
            self._tasks.spawn(group.leave())

    async def update(self, member: Member, publication: WeightPublication, round_: WeightRound | None = None) -> None:
        """Has an engine load the publication and serve, unless it has tried that one; applies remedies if it doesn't.

        It loads in the given round, or else in a late one: from what the trainer's senders keep, while the trainer may train.
        """
        async with member.turn:
            if member.tried is not publication:
                member.tried = publication
                await self._load(member, publication, round_)
            elif round_ is not None:
                await round_.leave(member.name)

    async def _load(self, member: Member, publication: WeightPublication, round_: WeightRound | None) -> None:
        calibrated = self.calibrations.get(member.calibration)
        while True:
            current, round_ = round_ or await self._late.join(member.name, publication.payload), None
            direct = isinstance(current, DirectRound)
            try:
                member.parity = await deliver(member, publication, calibrated, current, self._late)
            except FetchFailed as failed:
                slow = isinstance(failed, TooSlow)
                self._stop_serving(member, MemberState.STARTED, failed, lost=None if slow else failed.lost)
                if direct and not slow:
                    continue  # now through the host's memory
                self.fetches += 1
                if member.slot.on_trial:
                    member.slot.failed(failed.reason, unfit=False)
                elif slow and member.fetches:
                    self._tasks.spawn(self._restart(member, 0.0))
                else:
                    self._tasks.spawn(self._fetch_again(member, publication))
                return
            except PublicationRefused as refused:
                member.refused = publication
                self._stop_serving(member, MemberState.REFUSED, refused, lost=refused.lost)
                if member.slot.on_trial:
                    member.slot.failed(refused.reason)
                    return
                member.slot.refusals += 1
                refusals = [slot.refusals for slots in self._members.slots.values() for slot in slots.values()]
                if all_engines_refused(refusals, serving=len(self._members.serving)):
                    reasons = self._members.problems(MemberState.REFUSED)
                    self._tasks.fail(refused_everywhere(publication.version, reasons))
                if (wait := seconds_to_restart(member.slot.refusals)) is not None:
                    self._tasks.spawn(self._restart(member, wait))
                    return
                if publication is not self.publication:
                    return  # a newer one follows
            except (RayError, EngineDead) as error:
                log.warning("engine %s died while it was given weights: %s", member.name, death_cause(error))
                return
            except asyncio.CancelledError:
                # The trainer is lost; the engine gives up what it has loaded of this publication, and what ran.
                if member.state is not MemberState.ENDED:
                    reason = f"the publication of version {publication.version} was given up"
                    self._stop_serving(member, MemberState.STARTED, FetchFailed(reason), lost=None)
                raise
            else:
                member.loaded, member.direct = publication, direct
                self._serve(member, first=calibrated is None)
                return

    def _serve(self, member: Member, *, first: bool) -> None:
        """Notes that the engine passed the gate; the `first` engines of their kind to pass it calibrate it, by their largest parity."""
        if member.state is MemberState.ENDED:
            return  # it died as soon as it had answered
        if first:
            key = member.calibration
            self.calibrations[key] = max(member.parity, self.calibrations.get(key, 0.0))
        member.slot.refusals, member.fetches, member.problem = 0, 0, ""
        member.state = MemberState.SERVING
        member.slot.passed()
        self._listener.opened(member)
        self._tasks.tell()

    def _stop_serving(
        self, member: Member, state: MemberState, failed: UpdateFailed, lost: Sequence[SampleId] | None
    ) -> None:
        log.error("%s", failed.reason)
        member.state, member.problem, member.loaded = state, failed.reason, None
        self._listener.stopped(member, lost, failed.reason)
        self._tasks.tell()

    async def _fetch_again(self, member: Member, publication: WeightPublication) -> None:
        """Tries again after a while, unless there is a newer publication by then, or the engine doesn't wait for this one any more."""
        member.fetches += 1
        await asyncio.sleep(min(FETCH_SECONDS * 2.0 ** min(member.fetches, 32), MAX_FETCH_SECONDS))
        if self.publication is publication and member.state is MemberState.STARTED:
            member.tried = None
            await self.update(member, publication)

    async def _restart(self, member: Member, wait: float) -> None:
        """Ends an engine that refused, or was too slow twice, unless it serves after `wait` seconds; its slot starts another."""
        await asyncio.sleep(wait)
        async with member.turn:
            if member.state in (MemberState.REFUSED, MemberState.STARTED):
                log.warning("engine %s is restarted", member.name)
                await member.end(self._cluster)
