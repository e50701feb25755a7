"""The plan of engines' shapes: what it starts from, and how it follows from the log."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from longboat_crds.problems import SpecProblem
from longboat_crds.rollout import ParallelismMode, RolloutSpec
from longboat_runtime.driver.job import Job
from longboat_runtime.model_config import longest_sequence, tensor_shapes
from longboat_runtime.rollout.engine import engine_config, kv_tokens
from longboat_runtime.rollout.factory import read_model_config
from longboat_runtime.rollout.parallelism import Bounds, ParallelismPlan, PlanRules, permitted
from longboat_runtime.rollout.profile import identity, read_profile
from longboat_runtime.rollout.round_seconds import Limits
from longboat_runtime.rollout.throughput import Profile
from longboat_runtime.rounds import measurements
from longboat_runtime.rounds.events import Entry
from longboat_runtime.rounds.view import View


class ShapePlan:
    """Folds rounds, reshapes, edits of `rollout.parallelism` and pods that come and go.

    `present` is how many devices an engine has. `profiles` are the profiles that the log names, by path: whoever logs an edit reads the
    file before. A size that could not be taken may be tried again on other pods.
    """

    def __init__(
        self,
        bounds: Bounds,
        limits: Limits,
        profiles: dict[str, Profile],
        profile: str | None,
        view: View,
        present: int,
    ) -> None:
        self.plan, self.present = ParallelismPlan(present), present
        self.profiles = profiles
        self._profile = profile
        self._bounds, self._limits, self._view = bounds, limits, view
        self._pods: frozenset[str] = frozenset()
        self._failed_among: frozenset[str] = frozenset()

    @property
    def rounds_left(self) -> int:
        """The number of rounds that follow the one that is trained next."""
        return self._view.steps - self._view.step - 1

    @property
    def wants_change(self) -> bool:
        """Whether engines should have another size than they have."""
        return self.plan.size != self.present

    def fold(self, entry: Entry) -> None:
        """Folds an entry of the log."""
        match body := entry.body:
            case measurements.RoundMeasured():
                if self.plan.failed and self._failed_among != self._pods:
                    self.plan = self.plan.on_other_pods()
                profile = self.profiles.get(self._profile) if self._profile else None
                rules = PlanRules(self._bounds, self._limits, profile)
                self.plan = self.plan.after_round(body, rules, self.rounds_left)
            case measurements.Reshaped():
                self.present = body.tensor_parallel
                if not body.failure:
                    self.plan = self.plan.reshaped(body.tensor_parallel, sum(body.seconds.values()))
                elif body.unfit is not None:
                    self.plan = self.plan.after_failure(body.unfit, body.tensor_parallel)
                    self._failed_among = self._pods
            case measurements.ShapesAllowed():
                self._bounds, self._profile = Bounds(body.sizes, body.start), body.profile
                self.plan = self.plan.bounded(self._bounds)
            case measurements.PodsChanged():
                self._pods = self._pods.difference(body.gone).union(body.joined)

    def to_snapshot(self) -> dict[str, Any]:
        """Returns the plan, the path of its profile and the present shape as plain JSON values."""
        return {"plan": self.plan.to_snapshot(), "profile": self._profile, "tensor_parallel": self.present}

    def restore(self, snapshot: Mapping[str, Any]) -> None:
        """Continues with the plan of a snapshot. Raises ValueError if it isn't one.

        A plan that was learned with another profile, or saved by an earlier release, is discarded.
        """
        if snapshot.get("profile", "") == self._profile:
            self.plan = ParallelismPlan.from_snapshot(snapshot["plan"], self._bounds)


def open_shape_plan(job: Job, view: View, present: int, snapshot: Mapping[str, Any]) -> ShapePlan:
    """Reads what the plan depends on, and starts it with engines of `present` devices, or from the plan in a checkpoint.

    Raises SpecProblem if the profile can't be used, and ValueError if `snapshot` isn't one.
    """
    rollout = job.spec.rollout
    bounds, profile = read_shapes(job, rollout)
    plan = ShapePlan(
        bounds,
        Limits(rollout.max_sequences, rollout.sampling.max_tokens),
        {rollout.parallelism.profile: profile} if rollout.parallelism.profile and profile else {},
        rollout.parallelism.profile,
        view,
        present,
    )
    plan.restore(snapshot)
    return plan


def read_shapes(job: Job, rollout: RolloutSpec) -> tuple[Bounds, Profile | None]:
    """Returns the sizes of engines that pods can have and `rollout.parallelism` allows, and the profile that rounds are priced by, if any.

    Raises SpecProblem if the profile can't be used.
    """
    bounds, parallelism = bounds_of(job), rollout.parallelism
    profile = profile_of(job, rollout, bounds)
    if parallelism.mode is ParallelismMode.FIXED:
        return Bounds((bounds.start,), bounds.start), profile
    return bounds.within(parallelism.min_tensor_parallel, parallelism.max_tensor_parallel), profile


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
