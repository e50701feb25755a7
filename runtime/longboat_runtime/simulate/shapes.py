"""Engines of a simulated job, and the planners of their size. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

from longboat_runtime.rollout.parallelism import Bounds, ParallelismPlan, PlanRules
from longboat_runtime.rollout.round_seconds import Limits
from longboat_runtime.rollout.throughput import EngineModel, Profile, Throughput
from longboat_runtime.rounds.measurements import RoundMeasured
from longboat_runtime.simulate.paged_engine import BATCHED_TOKENS


@dataclass(frozen=True, slots=True)
class FinishedRound:
    """Holds what is known of a round that is being trained: its measured load, and how many rounds are `left`.

    Its engines and responses have `limits`. `reshaped` has the seconds that changes since the previous round took, by new size.
    """

    measured: RoundMeasured
    left: int
    limits: Limits
    reshaped: Mapping[int, float] = field(default_factory=dict)


class ShapePlanner(Protocol):
    """Says how many devices an engine has. It is immutable: what is learned from a round is in the next planner."""

    @property
    def size(self) -> int:
        """The devices of an engine."""

    def after_round(self, finished: FinishedRound) -> ShapePlanner:
        """Returns the planner for the next rounds."""


@dataclass(frozen=True, slots=True)
class FixedShape:
    """Keeps engines at a fixed size."""

    size: int

    def after_round(self, finished: FinishedRound) -> FixedShape:
        """Returns the same planner."""
        del finished
        return self


@dataclass(frozen=True, slots=True)
class PlannedShapes:
    """Wraps the production plan of mode Adaptive."""

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
        rules = PlanRules(self.bounds, finished.limits, self.profile)
        return replace(self, plan=plan.after_round(finished.measured, rules, finished.left))


@dataclass(frozen=True, slots=True)
class Shapes:
    """Divides the `devices` of each of `pods` into engines of the size that `planner` says.

    `throughput` has the model of engines by size. A pod's engines take `reshape_seconds[size]` to become engines of that size, 0 if it
    isn't given. That begins at the end of a round, while it is being trained. `batched_tokens` is as for `PagedEngine`. Raises ValueError
    for impossible values.
    """

    throughput: Throughput
    planner: ShapePlanner
    devices: int
    pods: int = 1
    reshape_seconds: Mapping[int, float] = field(default_factory=dict)
    batched_tokens: int = BATCHED_TOKENS

    def __post_init__(self) -> None:
        if min(self.devices, self.pods, self.batched_tokens) < 1 or min(self.reshape_seconds.values(), default=0.0) < 0:
            raise ValueError(
                "devices, pods and batched tokens must be at least 1, and reshapes can't take less than 0 s"
            )
        self.model(self.planner.size)

    def model(self, size: int) -> EngineModel:
        """Returns the model of engines of `size` devices. Raises ValueError if a pod can't have them, or there is no such model."""
        if size not in self.throughput or self.devices % size:
            raise ValueError(
                f"a pod of {self.devices} devices can't have engines of {size}; there are models of {sorted(self.throughput)}"
            )
        return self.throughput[size]
