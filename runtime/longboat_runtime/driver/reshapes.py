"""Has engines reshaped, as the plan of `rollout.parallelism` says."""

from __future__ import annotations

import asyncio
from collections import deque

import structlog

from longboat_crds.job import RLJobSpec
from longboat_crds.problems import SpecProblem
from longboat_crds.reasons import Reason
from longboat_crds.rounds import RoundPolicyName
from longboat_crds.status import LINE_LENGTH, RECENT_RESHAPES, ReshapeSummary
from longboat_runtime.driver.context import Context
from longboat_runtime.driver.observer import Observer
from longboat_runtime.driver.resume import Restored
from longboat_runtime.driver.shape_plan import read_shapes
from longboat_runtime.driver.stages import Stage
from longboat_runtime.rollout.throughput import Profile
from longboat_runtime.rounds import measurements
from longboat_runtime.rounds.events import Entry
from longboat_runtime.rounds.records import GroupRecord
from longboat_runtime.status_fragment import Problems, StatusFragment

log = structlog.get_logger()


class Reshapes(Observer):
    """Reshapes engines if the plan calls for another shape after a round.

    A reshape begins while the trainer computes, or after the publication that it waits for. Publications wait for its end, and so do rounds,
    except under BoundedAsync, which has no pause between rounds: there, engines are reshaped pod by pod.
    """

    watches = (measurements.RoundMeasured, measurements.Reshaped)

    def __init__(self, context: Context) -> None:
        self._context, self._job, self._components = context, context.job, context.components
        self._spec = context.job.spec.rollout
        self._one_by_one = context.job.spec.rounds.policy is RoundPolicyName.BOUNDED_ASYNC
        self._problems = Problems(context.news)
        self._working: asyncio.Task[None] | None = None
        self._waiting = False
        self._present: int | None = None
        # Profiles that edits name, which may come before the driver has restored its state.
        self._profiles: dict[str, Profile] = {}
        previous = context.broker.previous.training
        self._reshapes: deque[ReshapeSummary] = deque((previous and previous.reshapes) or (), maxlen=RECENT_RESHAPES)

    def resume(self, restored: Restored) -> None:
        """Follows the restored plan; engines have been started already (`starting_shape`)."""
        self._view, self._plan = restored.run_state.view, restored.run_state.shapes
        self._present = self._plan.present
        self._plan.profiles |= self._profiles
        self._profiles = self._plan.profiles

    async def edit(self, spec: RLJobSpec) -> None:
        """Follows an edit of `rollout.parallelism`, from the next round on.

        One to a profile that can't be used is a problem of the job, which keeps its plan and what it was planned by.
        """
        parallelism = spec.rollout.parallelism
        if parallelism == self._spec.parallelism:
            return
        edited = self._spec.model_copy(update={"parallelism": parallelism})
        try:
            bounds, profile = await asyncio.to_thread(read_shapes, self._job, edited)
        except SpecProblem as problem:
            message = f"{problem.message}. Engines keep the shapes and the plan that they have."
            self._problems.put(Reason.PROFILE_INVALID, problem.field, message)
            return
        self._problems.clear(Reason.PROFILE_INVALID)
        self._spec = edited
        if parallelism.profile and profile:
            self._profiles[parallelism.profile] = profile
        self._context.inbox.put_nowait(measurements.ShapesAllowed(bounds.sizes, bounds.start, parallelism.profile))

    def on(self, entry: Entry, before: GroupRecord | None) -> None:
        """Begins a reshape if the plan calls for one after a round that others follow, or notes one that has ended."""
        match entry.body:
            case measurements.RoundMeasured():
                self._waiting = False
                if self._plan.rounds_left > 0:
                    self._begin()
            case measurements.Reshaped() as reshaped:
                self._working, self._present = None, reshaped.tensor_parallel
                self._reshapes.append(
                    ReshapeSummary(
                        step=self._view.step,
                        tensor_parallel=reshaped.tensor_parallel,
                        reason=reshaped.reason[:LINE_LENGTH],
                        seconds=format(sum(reshaped.seconds.values()), ".1f"),
                        failure=reshaped.failure[:LINE_LENGTH] or None,
                    )
                )
                self._context.news.set()

    async def before_publication(self, version: int) -> None:
        await self._settled()

    async def before_round(self, version: int) -> None:
        """Begins the reshape that waits for a new publication, if the plan still calls for one: engines have a new one."""
        if self._waiting:
            self._waiting = False
            self._begin()
        if not self._one_by_one:
            await self._settled()

    def status(self) -> StatusFragment:
        training = {"tensor_parallel": self._present, "reshapes": list(self._reshapes) or None}
        return StatusFragment(training, problems=self._problems.present)

    async def _settled(self) -> None:
        """Waits until no reshape is under way."""
        if self._working is not None:
            await asyncio.wait([self._working])

    def _begin(self) -> None:
        if self._plan.wants_change and self._working is None:
            reshape = self._reshape(self._plan.plan.size, self._plan.plan.reason)
            self._working = self._context.background.spawn(reshape)

    async def _reshape(self, size: int, reason: str) -> None:
        """Reshapes engines if they can still fetch the last publication, without which they can't serve; else it waits for the next."""
        if not await self._components.trainer.holds_publication():
            log.warning("a reshape waits for the next publication, since the last one can't be fetched any more")
            self._waiting, self._working = True, None
            return
        log.info("engines are reshaped", tensor_parallel=size, reason=reason)
        with self._context.stages.running(Stage.RESHAPE):
            done = await self._components.fleet.reshape(size, one_by_one=self._one_by_one)
        if done.failure is not None:
            log.warning("engines can't be reshaped", tensor_parallel=size, failure=done.failure)
        seconds = {str(phase): round(duration, 3) for phase, duration in done.seconds.items()}
        unfit = size if done.failure is not None and done.unfit else None
        reshaped = measurements.Reshaped(done.tensor_parallel, reason, seconds, done.failure or "", unfit)
        self._context.inbox.put_nowait(reshaped)
