"""Has engines reshaped, as the plan of `rollout.parallelism` says."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import structlog

from longboat_crds.problems import SpecProblem
from longboat_crds.reasons import Reason
from longboat_crds.rollout import ParallelismMode, RolloutSpec
from longboat_crds.rounds import RoundPolicyName
from longboat_runtime.driver.components import Components
from longboat_runtime.driver.job import Job
from longboat_runtime.driver.reporter import Reporter
from longboat_runtime.driver.stages import Stage
from longboat_runtime.model_config import longest_sequence, tensor_shapes
from longboat_runtime.rollout.engine import engine_config, kv_tokens
from longboat_runtime.rollout.factory import read_model_config
from longboat_runtime.rollout.parallelism import Bounds, ParallelismPlan, PlanRules, permitted
from longboat_runtime.rollout.profile import identity, read_profile
from longboat_runtime.rollout.round_seconds import Limits
from longboat_runtime.rollout.throughput import Profile
from longboat_runtime.rounds import measurements
from longboat_runtime.rounds.measurements import Measurement

log = structlog.get_logger()


class Reshapes:
    """Learns from every measured round, and reshapes engines if the plan calls for another shape.

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
        self._present = job.spec.rollout.tensor_parallel
        self._all = Bounds((self._present,), self._present)
        self._plan = ParallelismPlan(self._present)
        self._profile: Profile | None = None
        self._working: asyncio.Task[None] | None = None
        self._waiting = False
        self._failed_among: frozenset[str] = frozenset()

    async def resume(self, snapshot: Mapping[str, Any] | None) -> None:
        """Starts from the plan of a checkpoint, if there is one of the same profile; engines have been started already (`starting_shape`).

        Raises SpecProblem if the profile can't be used.
        """
        self._all = await asyncio.to_thread(bounds_of, self._job)
        self._profile = await asyncio.to_thread(profile_of, self._job, self._spec, self._all)
        self._present = self._components.fleet.tensor_parallel
        self._reporter.set_tensor_parallel(self._present)
        self._plan = ParallelismPlan(self._present)
        # A plan that was learned with another profile, or saved by an earlier release, is discarded.
        if snapshot is not None and snapshot.get("profile", "") == self._spec.parallelism.profile:
            self._plan = ParallelismPlan.from_snapshot(snapshot["plan"], self._bounds)

    @property
    def snapshot(self) -> dict[str, Any]:
        """The plan, the profile that it follows and the present shape, for checkpoints."""
        profile = self._spec.parallelism.profile
        return {"plan": self._plan.to_snapshot(), "profile": profile, "tensor_parallel": self._present}

    @property
    def _bounds(self) -> Bounds:
        bounds = self._spec.parallelism
        if bounds.mode is ParallelismMode.FIXED:
            return replace(self._all, sizes=(self._all.start,))
        return self._all.within(bounds.min_tensor_parallel, bounds.max_tensor_parallel)

    async def edit(self, spec: RolloutSpec) -> None:
        """Follows an edit of `rollout.parallelism`, from the next round on.

        One to a profile that can't be used is a problem of the job, which keeps its plan and what it was planned by.
        """
        if spec.parallelism == self._spec.parallelism:
            return
        edited = self._spec.model_copy(update={"parallelism": spec.parallelism})
        profile = None
        try:
            if spec.parallelism.profile is not None:
                profile = await asyncio.to_thread(profile_of, self._job, edited, self._all)
        except SpecProblem as problem:
            message = f"{problem.message}. Engines keep the shapes and the plan that they have."
            self._reporter.problems.put(Reason.PROFILE_INVALID, problem.field, message)
            self._reporter.publish()
            return
        self._reporter.problems.clear(Reason.PROFILE_INVALID)
        self._spec, self._profile = edited, profile
        self._plan = self._plan.bounded(self._bounds)

    def measured(self, body: measurements.RoundMeasured, remaining: int) -> None:
        """Updates the plan from a measured round that `remaining` others follow.

        Begins a reshape if the plan calls for one, other rounds follow, and none is under way.
        """
        if self._plan.failed and self._failed_among != frozenset(self._components.fleet.pods):
            self._plan = self._plan.on_other_pods()
        limits = Limits(self._spec.max_sequences, self._spec.sampling.max_tokens)
        rules = PlanRules(self._bounds, limits, self._profile)
        self._plan = self._plan.after_round(body, rules, remaining)
        self._waiting = False
        if remaining > 0 and self._plan.size != self._present and self._working is None:
            self._begin()

    def published(self) -> None:
        """Begins the reshape that waits for a new publication, if the plan still calls for one: engines have a new one."""
        if self._waiting and self._plan.size != self._present and self._working is None:
            self._begin()
        self._waiting = False

    def happened(self, body: measurements.Reshaped) -> None:
        """Records what a reshape took."""
        if not body.failure:
            self._plan = self._plan.reshaped(body.tensor_parallel, sum(body.seconds.values()))

    async def settled(self) -> None:
        """Waits until no reshape is under way."""
        if self._working is not None:
            await asyncio.wait([self._working])

    def _begin(self) -> None:
        self._working = self._spawn(self._reshape(self._plan.size, self._plan.reason))

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
            if done.unfit:
                self._plan = self._plan.after_failure(size, done.tensor_parallel)
                self._failed_among = frozenset(self._components.fleet.pods)
        self._present, self._working = done.tensor_parallel, None
        seconds = {str(phase): round(duration, 3) for phase, duration in done.seconds.items()}
        body = measurements.Reshaped(done.tensor_parallel, reason, seconds, done.failure or "")
        self._record(body)
        self._reporter.reshaped(body)


def bounds_of(job: Job) -> Bounds:
    """Determines the sizes of engines that the job's pods can have: by the model's config and, with `deviceMemory`, its files' headers.

    Only the spec's own is left if the config can't be read or `longest_sequence` fails: whoever loads the model says why.
    """
    rollout, model = job.spec.rollout, job.spec.model
    start = rollout.tensor_parallel
    config = engine_config(job.spec, "", tuple(range(start)))
    try:
        content = read_model_config(config)
        longest = longest_sequence(content, model.max_length, model.path)
    except SpecProblem:
        return Bounds((start,), start)
    shapes = tensor_shapes(Path(model.path)) if config.device_memory is not None else {}
    sizes = permitted(config, content, shapes, longest, rollout.devices_per_pod)
    return Bounds(tuple(sorted({*sizes, start})), start)


def profile_of(job: Job, rollout: RolloutSpec, bounds: Bounds) -> Profile | None:
    """Returns the profile that rounds are priced by; None without one, or if shapes are fixed. Raises SpecProblem if it can't be used.

    If the spec gives memory for the KV cache, its engines have that of it, whatever was measured.
    """
    wanted = rollout.parallelism
    if wanted.mode is ParallelismMode.FIXED or wanted.profile is None:
        return None
    config = engine_config(job.spec, "", (0,))
    sizes = bounds.within(wanted.min_tensor_parallel, wanted.max_tensor_parallel).sizes
    model = read_model_config(config)
    profile = read_profile(wanted.profile, identity(config, model), sizes)
    shapes = tensor_shapes(Path(job.spec.model.path)) if config.device_memory is not None else {}
    return profile.with_kv_tokens(kv_tokens(config, model, shapes, sizes))


def check_profile(job: Job) -> None:
    """Raises SpecProblem if the profile can't be used."""
    profile_of(job, job.spec.rollout, bounds_of(job))


def starting_shape(job: Job, state: Mapping[str, Any] | None) -> int:
    """Chooses how many devices an engine has when a driver starts: as in the newest checkpoint, or the nearest within the bounds.

    If shapes are fixed or there is no `state`, that of the checkpoint that the job starts from, it is the spec's number.
    """
    bounds = job.spec.rollout.parallelism
    if bounds.mode is ParallelismMode.FIXED or state is None:
        return job.spec.rollout.tensor_parallel
    within = bounds_of(job).within(bounds.min_tensor_parallel, bounds.max_tensor_parallel)
    return within.nearest(int(state.get("parallelism", {}).get("tensor_parallel", within.start)))
