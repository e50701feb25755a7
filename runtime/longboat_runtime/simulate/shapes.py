"""What engines a simulated job's devices are grouped into, and who decides on that between rounds. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

from longboat_crds.rollout import ParallelismMode
from longboat_runtime.rollout.parallelism import Bounds, ParallelismPlan, PlanRules, Upcoming
from longboat_runtime.rollout.predictions import Limits
from longboat_runtime.rollout.throughput import EngineModel, Profile, Throughput
from longboat_runtime.rounds.events import RoundKind, RoundMeasured
from longboat_runtime.simulate.paged_engine import BATCHED_TOKENS, BLOCK_SIZE


@dataclass(frozen=True, slots=True)
class FinishedRound:
    """A round that is being trained: what its engines felt and were asked for, and what follows, as a driver knows it then.

    Its engines and responses have `limits`. Since the round before, changes to the sizes in `reshaped` took so many seconds.
    """

    measured: RoundMeasured
    upcoming: Upcoming
    limits: Limits
    reshaped: Mapping[int, float] = field(default_factory=dict)

    @property
    def following(self) -> RoundKind:
        """The kind of the next round."""
        return self.upcoming.following


class ShapePlanner(Protocol):
    """Says how many devices an engine has. A value that doesn't change: what it has learned is in the planner that follows it."""

    @property
    def sizes(self) -> Mapping[RoundKind, int]:
        """Devices of an engine in rounds of each kind."""

    def after_round(self, finished: FinishedRound) -> ShapePlanner:
        """The planner for the next rounds."""


@dataclass(frozen=True, slots=True)
class FixedShapes:
    """Engines of a fixed size in rounds of each kind."""

    sizes: Mapping[RoundKind, int]

    @classmethod
    def of(cls, short: int, long: int | None = None) -> FixedShapes:
        """Engines of `short` devices in short rounds, and of as many in long ones unless `long` is given."""
        return cls({RoundKind.SHORT: short, RoundKind.LONG: short if long is None else long})

    def after_round(self, finished: FinishedRound) -> FixedShapes:
        """The same."""
        del finished
        return self


@dataclass(frozen=True, slots=True)
class PlannedShapes:
    """The production plan, `rollout.parallelism` of `mode`; by `profile` if that is Predictive.

    Raises ValueError if one of the two is there without the other.
    """

    plan: ParallelismPlan
    mode: ParallelismMode
    bounds: Bounds
    profile: Profile | None = None

    def __post_init__(self) -> None:
        if (self.mode is ParallelismMode.PREDICTIVE) != (self.profile is not None):
            raise ValueError("mode Predictive needs a profile, and other modes have none")

    @property
    def sizes(self) -> Mapping[RoundKind, int]:
        return self.plan.sizes

    def after_round(self, finished: FinishedRound) -> PlannedShapes:
        plan = self.plan
        for size, seconds in finished.reshaped.items():
            plan = plan.reshaped(size, seconds)
        rules = PlanRules(self.mode, self.bounds, finished.limits, self.profile)
        return replace(self, plan=plan.after_round(finished.measured, rules, finished.upcoming))


@dataclass(frozen=True, slots=True)
class Shapes:
    """Each of `pods` has `devices`, divided into engines of the size that `planner` says for the kind of the round.

    Engines of a size are those of `throughput`. A pod's engines take `reshape_seconds[size]` to become engines of that size (0 if
    it isn't there), from the end of the round before, while that is being trained. KV blocks have `block_size` tokens; a step
    computes at most `batched_tokens`. Raises ValueError for impossible values.
    """

    throughput: Throughput
    planner: ShapePlanner
    devices: int
    pods: int = 1
    reshape_seconds: Mapping[int, float] = field(default_factory=dict)
    block_size: int = BLOCK_SIZE
    batched_tokens: int = BATCHED_TOKENS

    @classmethod
    def profiled(cls, profile: Profile, planner: ShapePlanner, devices: int, pods: int = 1) -> Shapes:
        """Engines that take and hold what the profile says, and change in the seconds that it says."""
        return cls(profile.throughput, planner, devices, pods, profile.change_seconds)

    def __post_init__(self) -> None:
        if (
            min(self.devices, self.pods, self.block_size, self.batched_tokens) < 1
            or min(self.reshape_seconds.values(), default=0.0) < 0
        ):
            raise ValueError("shapes need devices, pods, blocks and a budget of tokens, and reshapes take time")
        for size in self.planner.sizes.values():
            self.model(size)

    def model(self, size: int) -> EngineModel:
        """Of engines of `size` devices. Raises ValueError if a pod can't have them."""
        if size not in self.throughput or self.devices % size:
            raise ValueError(
                f"a pod of {self.devices} devices can't have engines of {size}, modelled are {sorted(self.throughput)}"
            )
        return self.throughput[size]

    def hold(self, tokens: int) -> bool:
        """Whether the engines of all planned sizes have KV cache for a sequence of so many tokens."""
        # vLLM keeps one block for itself.
        blocks = min(self.model(size).kv_tokens for size in self.planner.sizes.values()) // self.block_size - 1
        return blocks * self.block_size >= tokens
