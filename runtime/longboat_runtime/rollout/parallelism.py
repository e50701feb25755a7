"""How the devices of rollout pods are grouped into engines, for short and for long rounds. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from longboat_crds.rollout import ParallelismMode
from longboat_runtime.problems import SpecProblem
from longboat_runtime.rollout.engine import EngineConfig, check_cache, check_parallelism, with_cache
from longboat_runtime.rounds.events import RoundKind

# RollPacker's parallelism planner (arXiv:2509.21009): preemptions that rise by more than this factor double tensor parallelism,
RISE = 1.05
# and so many rounds of a kind without any halve it.
QUIET_ROUNDS = 4


def permitted(
    config: EngineConfig,
    model: Mapping[str, Any],
    shapes: Mapping[str, Sequence[int]],
    max_length: int,
    devices: int,
) -> tuple[int, ...]:
    """Sizes of engines, ascending, that a pod of `devices` can have.

    It can be divided into them, vLLM can split the model over them, and their KV cache holds a sequence of `max_length` tokens. `model` is config.json by standard names, `shapes` are those of the model's tensors.
    """
    return tuple(
        size
        for size in range(1, devices + 1)
        if devices % size == 0 and _serves(config, model, shapes, max_length, size)
    )


def _serves(
    config: EngineConfig, model: Mapping[str, Any], shapes: Mapping[str, Sequence[int]], max_length: int, size: int
) -> bool:
    config = replace(config, devices=tuple(range(size)))
    try:
        check_parallelism(config, model)
        check_cache(with_cache(config, model, shapes), model, max_length)
    except SpecProblem:
        return False
    return True


@dataclass(frozen=True, slots=True)
class Bounds:
    """What a plan may choose from: `sizes` of engines, ascending, and `start`, the spec's own, which is one of them."""

    sizes: tuple[int, ...]
    start: int

    def within(self, least: int | None, most: int | None) -> Bounds:
        """Those from `least` to `most`, where given."""
        return replace(self, sizes=tuple(s for s in self.sizes if (least or s) <= s <= (most or s)) or (self.start,))

    def nearest(self, size: int) -> int:
        """The size itself, or the one that is least far from it."""
        return min(self.sizes, key=lambda other: (abs(other - size), other))


@dataclass(frozen=True, slots=True)
class KindPlan:
    """The plan for rounds of one kind: engines of `tensor_parallel` devices each, and why.

    `preemptions` are those of the last round of the kind, None before the first; `quiet` counts such rounds in a row without any;
    `changes` counts changes of the plan.
    """

    tensor_parallel: int
    reason: str = ""
    preemptions: int | None = None
    quiet: int = 0
    changes: int = 0


def by_preemptions(plan: KindPlan, kind: RoundKind, preemptions: int, sizes: Sequence[int]) -> KindPlan:
    """The plan after a round of its kind with so many preemptions; `sizes`, ascending, are those that may be chosen.

    The rule (RollPacker): more than RISE times the preemptions of the previous round of the kind, any where there were none, take the
    next size up; none in QUIET_ROUNDS rounds of the kind in a row take the next size down. What can't be chosen isn't. It may oscillate.
    """
    before, quiet = plan.preemptions, 0 if preemptions else plan.quiet + 1
    plan = replace(plan, preemptions=preemptions, quiet=quiet)
    if before is not None and preemptions > RISE * before:
        larger = [size for size in sizes if size > plan.tensor_parallel]
        why = f"preemptions in {kind} rounds rose from {before} to {preemptions}"
        return _changed(plan, larger[0], why) if larger else plan
    if quiet >= QUIET_ROUNDS:
        smaller = [size for size in sizes if size < plan.tensor_parallel]
        why = f"no preemptions in {quiet} {kind} rounds"
        return _changed(plan, smaller[-1], why) if smaller else plan
    return plan


def _changed(plan: KindPlan, size: int, why: str) -> KindPlan:
    reason = f"{why}: {plan.tensor_parallel} -> {size} devices an engine"
    return replace(plan, tensor_parallel=size, reason=reason, quiet=0, changes=plan.changes + 1)


@dataclass(frozen=True, slots=True)
class ParallelismPlan:
    """The plans of both kinds. `failed` are sizes that engines could not take: they aren't tried again until something has changed."""

    kinds: Mapping[RoundKind, KindPlan]
    failed: frozenset[int] = field(default_factory=frozenset)

    @classmethod
    def starting(cls, bounds: Bounds) -> ParallelismPlan:
        """As the spec has it."""
        return cls({kind: KindPlan(bounds.start) for kind in RoundKind})

    def measured(self, mode: ParallelismMode, kind: RoundKind, preemptions: int, bounds: Bounds) -> ParallelismPlan:
        """The plan after a round of this kind."""
        if mode is ParallelismMode.FIXED:
            return self.bounded(mode, bounds)
        sizes = [size for size in bounds.sizes if size not in self.failed]
        after = by_preemptions(self.kinds[kind], kind, preemptions, sizes)
        return replace(self, kinds={**self.kinds, kind: after})

    def bounded(self, mode: ParallelismMode, bounds: Bounds) -> ParallelismPlan:
        """The plan after an edit of mode or bounds: fixed shapes are those of the spec; what has failed may be tried again."""

        def within(plan: KindPlan) -> KindPlan:
            size = bounds.start if mode is ParallelismMode.FIXED else bounds.nearest(plan.tensor_parallel)
            return plan if size == plan.tensor_parallel else _changed(plan, size, "rollout.parallelism was edited")

        return ParallelismPlan({kind: within(plan) for kind, plan in self.kinds.items()})

    def after_failure(self, failed: int, present: int) -> ParallelismPlan:
        """Engines of `failed` devices don't serve; they have `present` devices still."""

        def without(plan: KindPlan) -> KindPlan:
            return replace(plan, tensor_parallel=present) if plan.tensor_parallel == failed else plan

        kinds = {kind: without(plan) for kind, plan in self.kinds.items()}
        return ParallelismPlan(kinds, self.failed | {failed})

    def to_snapshot(self) -> dict[str, Any]:
        """As plain JSON values, for checkpoints."""
        return {"kinds": {str(kind): asdict(plan) for kind, plan in self.kinds.items()}, "failed": sorted(self.failed)}

    @classmethod
    def from_snapshot(cls, snapshot: Mapping[str, Any], bounds: Bounds) -> ParallelismPlan:
        """Inverse of `to_snapshot`, within bounds that may have changed since. Raises KeyError or TypeError if it isn't a snapshot."""
        kinds = {RoundKind(kind): KindPlan(**plan) for kind, plan in snapshot["kinds"].items()}
        within = {
            kind: replace(plan, tensor_parallel=bounds.nearest(plan.tensor_parallel)) for kind, plan in kinds.items()
        }
        failed: Collection[int] = snapshot["failed"]
        return cls({**cls.starting(bounds).kinds, **within}, frozenset(failed))
