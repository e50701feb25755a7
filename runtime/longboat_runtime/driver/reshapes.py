"""Has engines reshaped between rounds, as the plan of `rollout.parallelism` says."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any

import structlog

from longboat_crds.rollout import ParallelismMode, RolloutSpec
from longboat_crds.rounds import OFF_POLICY
from longboat_runtime.driver.components import Components
from longboat_runtime.driver.job import Job
from longboat_runtime.driver.reporter import Reporter
from longboat_runtime.model_config import language_model, longest_sequence, tensor_shapes
from longboat_runtime.problems import SpecProblem
from longboat_runtime.rollout.engine import engine_config
from longboat_runtime.rollout.parallelism import Bounds, ParallelismPlan, permitted
from longboat_runtime.rounds import events
from longboat_runtime.rounds.events import RoundKind

log = structlog.get_logger()


class Reshapes:
    """Learns from every round, and reshapes engines while the trainer computes, if the next round is to have another shape.

    `happened` gets the event of a reshape.
    """

    def __init__(
        self,
        job: Job,
        components: Components,
        reporter: Reporter,
        happened: Callable[[events.Body], None],
        spawn: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]],
    ) -> None:
        self._job, self._components, self._reporter = job, components, reporter
        self._happened, self._spawn = happened, spawn
        self._spec = job.spec.rollout
        self._present = job.spec.rollout.tensor_parallel
        self._all = Bounds((self._present,), self._present)
        self._plan = ParallelismPlan.starting(self._all)
        self._working: asyncio.Task[None] | None = None

    async def resume(self, snapshot: Mapping[str, Any] | None) -> None:
        """Starts from the plan of a checkpoint, if there is one; engines have been started in its shape (`starting_shape`)."""
        self._all = await asyncio.to_thread(bounds_of, self._job)
        self._present = self._components.fleet.tensor_parallel
        self._reporter.set_tensor_parallel(self._present)
        self._plan = ParallelismPlan.starting(self._bounds)
        if snapshot is not None and self._spec.parallelism.mode is not ParallelismMode.FIXED:
            self._plan = ParallelismPlan.from_snapshot(snapshot["plan"], self._bounds)

    @property
    def snapshot(self) -> dict[str, Any]:
        """The plan and the present shape, for checkpoints."""
        return {"plan": self._plan.to_snapshot(), "tensor_parallel": self._present}

    @property
    def _bounds(self) -> Bounds:
        bounds = self._spec.parallelism
        return self._all.within(bounds.min_tensor_parallel, bounds.max_tensor_parallel)

    def edit(self, spec: RolloutSpec) -> None:
        """Follows an edit of `rollout.parallelism`, from the next round on."""
        if spec.parallelism != self._spec.parallelism:
            self._spec = self._spec.model_copy(update={"parallelism": spec.parallelism})
            self._plan = self._plan.bounded(spec.parallelism.mode, self._bounds)

    def measured(self, body: events.RoundMeasured, following: RoundKind) -> None:
        """A round has been measured; the next one is of kind `following`."""
        self._plan = self._plan.measured(self._spec.parallelism.mode, body.kind, body.preemptions, self._bounds)
        wanted = self._plan.kinds[following]
        if wanted.tensor_parallel != self._present and self._working is None:
            self._working = self._spawn(self._reshape(following, wanted.tensor_parallel, wanted.reason))

    async def settled(self) -> None:
        """Waits until engines have their shape: a round begins in one shape."""
        if self._working is not None:
            await asyncio.wait([self._working])

    async def _reshape(self, kind: RoundKind, wanted: int, reason: str) -> None:
        log.info("engines are reshaped", tensor_parallel=wanted, reason=reason)
        one_by_one = self._job.spec.rounds.policy in OFF_POLICY
        done = await self._components.fleet.reshape(wanted, one_by_one=one_by_one)
        if done.failure is not None:
            log.warning("engines can't be reshaped", tensor_parallel=wanted, failure=done.failure)
            self._plan = self._plan.after_failure(wanted, done.tensor_parallel)
        self._present, self._working = done.tensor_parallel, None
        seconds = {str(phase): round(of, 3) for phase, of in done.seconds.items()}
        body = events.Reshaped(kind, done.tensor_parallel, reason, seconds, done.failure or "")
        self._happened(body)
        self._reporter.reshaped(body)


def bounds_of(job: Job) -> Bounds:
    """The sizes of engines that the job's pods can have, by the model's config and the headers of its files.

    If those can't be read, there is no choice: whoever loads the model says what is wrong with it.
    """
    rollout, model = job.spec.rollout, job.spec.model
    directory, start = Path(model.path), rollout.tensor_parallel
    try:
        content = language_model(json.loads((directory / "config.json").read_text()))
        longest = longest_sequence(content, model.max_length, model.path)
    except (OSError, ValueError, SpecProblem):
        return Bounds((start,), start)
    config = engine_config(job.spec, "", tuple(range(start)))
    sizes = permitted(config, content, tensor_shapes(directory), longest, rollout.devices_per_pod)
    return Bounds(tuple(sorted({*sizes, start})), start)


def starting_shape(spec: RolloutSpec, state: Mapping[str, Any] | None) -> int:
    """Devices of each engine that a driver starts with: those of the checkpoint with this state, unless they are fixed (pure)."""
    if spec.parallelism.mode is ParallelismMode.FIXED or state is None:
        return spec.tensor_parallel
    return int(state.get("parallelism", {}).get("tensor_parallel", spec.tensor_parallel))
