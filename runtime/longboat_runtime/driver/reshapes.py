"""Has engines reshaped, as the plan of `rollout.parallelism` says."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import structlog

from longboat_crds.problems import SpecProblem
from longboat_crds.reasons import Reason
from longboat_crds.rollout import RolloutSpec
from longboat_crds.rounds import RoundPolicyName
from longboat_runtime.driver.components import Components
from longboat_runtime.driver.job import Job
from longboat_runtime.driver.reporter import Reporter
from longboat_runtime.driver.shape_plan import ShapePlan, read_shapes
from longboat_runtime.driver.stages import Stage
from longboat_runtime.rounds import measurements
from longboat_runtime.rounds.measurements import Measurement

log = structlog.get_logger()


class Reshapes:
    """Reshapes engines if the plan calls for another shape after a round.

    A reshape begins while the trainer computes, or after the publication that it waits for. `record` gets what it took.
    """

    def __init__(
        self,
        job: Job,
        components: Components,
        reporter: Reporter,
        record: Callable[[Measurement], None],
        spawn: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]],
    ) -> None:
        self._job, self._components, self._reporter = job, components, reporter
        self._record, self._spawn = record, spawn
        self._spec = job.spec.rollout
        self._working: asyncio.Task[None] | None = None
        self._waiting = False

    def resume(self, plan: ShapePlan) -> None:
        """Follows this plan; engines have been started already (`starting_shape`)."""
        self._plan = plan
        self._reporter.set_tensor_parallel(plan.present)

    async def edit(self, spec: RolloutSpec) -> None:
        """Follows an edit of `rollout.parallelism`, from the next round on.

        One to a profile that can't be used is a problem of the job, which keeps its plan and what it was planned by.
        """
        if spec.parallelism == self._spec.parallelism:
            return
        edited = self._spec.model_copy(update={"parallelism": spec.parallelism})
        path = spec.parallelism.profile
        try:
            bounds, profile = await asyncio.to_thread(read_shapes, self._job, edited)
        except SpecProblem as problem:
            message = f"{problem.message}. Engines keep the shapes and the plan that they have."
            self._reporter.problems.put(Reason.PROFILE_INVALID, problem.field, message)
            self._reporter.publish()
            return
        self._reporter.problems.clear(Reason.PROFILE_INVALID)
        self._spec = edited
        if path and profile:
            self._plan.profiles[path] = profile
        self._record(measurements.ShapesAllowed(bounds.sizes, bounds.start, path))

    def measured(self) -> None:
        """Begins a reshape if the plan calls for one after a round, other rounds follow, and none is under way."""
        self._waiting = False
        if self._plan.rounds_left > 0:
            self._begin()

    def published(self) -> None:
        """Begins the reshape that waits for a new publication, if the plan still calls for one: engines have a new one."""
        if self._waiting:
            self._waiting = False
            self._begin()

    def reshaped(self, body: measurements.Reshaped) -> None:
        """Reports a reshape that has ended."""
        self._working = None
        self._reporter.reshaped(body)

    async def settled(self) -> None:
        """Waits until no reshape is under way."""
        if self._working is not None:
            await asyncio.wait([self._working])

    def _begin(self) -> None:
        if self._plan.wants_change and self._working is None:
            self._working = self._spawn(self._reshape(self._plan.plan.size, self._plan.plan.reason))

    async def _reshape(self, size: int, reason: str) -> None:
        """Reshapes engines if they can still fetch the last publication, without which they can't serve; else leaves it to `published`."""
        if not await self._components.trainer.holds_publication():
            log.warning("a reshape waits for the next publication, since the last one can't be fetched any more")
            self._waiting, self._working = True, None
            return
        log.info("engines are reshaped", tensor_parallel=size, reason=reason)
        one_by_one = self._job.spec.rounds.policy is RoundPolicyName.BOUNDED_ASYNC  # which has no pause between rounds
        with self._reporter.stages.running(Stage.RESHAPE):
            done = await self._components.fleet.reshape(size, one_by_one=one_by_one)
        if done.failure is not None:
            log.warning("engines can't be reshaped", tensor_parallel=size, failure=done.failure)
        seconds = {str(phase): round(duration, 3) for phase, duration in done.seconds.items()}
        unfit = size if done.failure is not None and done.unfit else None
        self._record(measurements.Reshaped(done.tensor_parallel, reason, seconds, done.failure or "", unfit))
