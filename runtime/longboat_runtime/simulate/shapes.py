"""What engines a simulated job's devices are grouped into, and who decides on that between rounds. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

from longboat_crds.rollout import ParallelismMode
from longboat_runtime.rollout.parallelism import Bounds, ParallelismPlan, PlanRules
from longboat_runtime.rollout.round_seconds import Limits
from longboat_runtime.rollout.throughput import EngineModel, Profile, Throughput
from longboat_runtime.rounds.events import RoundMeasured
from longboat_runtime.simulate.paged_engine import BATCHED_TOKENS


@dataclass(frozen=True, slots=True)
class FinishedRound:
    """A round that is being trained: what its engines felt and were asked for, and how many rounds are `left`.

    Its engines and responses have `limits`. Since the round before, changes to the sizes in `reshaped` took so many seconds.
    """

    measured: RoundMeasured
    left: int
    limits: Limits
    reshaped: Mapping[int, float] = field(default_factory=dict)


class ShapePlanner(Protocol):
    """Says how many devices an engine has. A value that doesn't change: what it has learned is in the planner that follows it."""

    @property
    def size(self) -> int:
        """Devices of an engine."""

    def after_round(self, finished: FinishedRound) -> ShapePlanner:
        """The planner for the next rounds."""


@dataclass(frozen=True, slots=True)
class FixedShape:
    """Engines of a fixed size."""

    size: int

    def after_round(self, finished: FinishedRound) -> FixedShape:
        """The same."""
        del finished
        return self


@dataclass(frozen=True, slots=True)
class PlannedShapes:
    """The production plan, `rollout.parallelism` of mode Adaptive, with a profile or without."""

    plan: ParallelismPlan
    bounds: Bounds
    profile: Profile | None = None

    @property
    def size(self) -> int:
        return self.plan.size

    def after_round(self, finished: FinishedRound) -> PlannedShapes:
        plan = self.plan
        for size, seconds in finished.reshaped.items():
            plan = plan.reshaped(size, seconds)
        rules = PlanRules(ParallelismMode.ADAPTIVE, self.bounds, finished.limits, self.profile)
        return replace(self, plan=plan.after_round(finished.measured, rules, finished.left))


@dataclass(frozen=True, slots=True)
class Shapes:
    """Each of `pods` has `devices`, divided into engines of the size that `planner` says.

    Engines of a size are those of `throughput`. A pod's engines take `reshape_seconds[size]` to become engines of that size (0 if
    it isn't there), from the end of the round before, while that is being trained. A step computes at most `batched_tokens`. Raises ValueError for impossible values.
    """

    throughput: Throughput
    planner: ShapePlanner
    devices: int
    pods: int = 1
    reshape_seconds: Mapping[int, float] = field(default_factory=dict)
    batched_tokens: int = BATCHED_TOKENS

    def __post_init__(self) -> None:
        if min(self.devices, self.pods, self.batched_tokens) < 1 or min(self.reshape_seconds.values(), default=0.0) < 0:
            raise ValueError("shapes need devices, pods and a budget of tokens, and reshapes take time")
        self.model(self.planner.size)

    def model(self, size: int) -> EngineModel:
        """Of engines of `size` devices. Raises ValueError if a pod can't have them."""
        if size not in self.throughput or self.devices % size:
            raise ValueError(
                f"a pod of {self.devices} devices can't have engines of {size}, modelled are {sorted(self.throughput)}"
            )
        return self.throughput[size]
