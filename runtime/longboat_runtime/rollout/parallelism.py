"""How the devices of rollout pods are grouped into engines, from round to round. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import Any

from pydantic import TypeAdapter

from longboat_crds.rollout import ParallelismMode
from longboat_runtime.problems import SpecProblem
from longboat_runtime.rollout.engine import EngineConfig, check_cache, check_parallelism, with_cache
from longboat_runtime.rollout.round_seconds import Limits, round_seconds, work_of
from longboat_runtime.rollout.throughput import Profile
from longboat_runtime.rounds.events import RoundKind, RoundMeasured, RoundWork

# What another size would have saved counts as chance up to this share of a round.
EVIDENCE = 0.4
# Rounds are alike if their devices and the mean lengths of their responses differ by no more than this factor.
ALIKE = 1.25
# A round counts as no slower than like rounds by more than this factor: an engine that was lost says nothing about its size.
SLOWEST = 1.2
# Like rounds count as the mean of so many: an older one fades. So many kinds of like rounds are remembered.
MEAN_ROUNDS, REMEMBERED = 8, 64
# A trial follows so many rounds in a row with more preemptions than this share of their responses, or as many without any, if both of
# its changes cost no more than this share of the rounds that are left.
TRIAL_ROUNDS, TRIAL_PREEMPTIONS, TRIAL_COST = 2, 0.5, 0.05
# The seconds of a round are the mean of this one and, with the same weight, all before it.
RECENT = 0.5


def permitted(
    config: EngineConfig,
    model: Mapping[str, Any],
    shapes: Mapping[str, Sequence[int]],
    max_length: int,
    devices: int,
) -> tuple[int, ...]:
    """Sizes of engines, ascending, that a pod of `devices` can have.

    It can be divided into them, vLLM can split the model over them, and their KV cache holds a sequence of `max_length` tokens. `model`
    is config.json by standard names; `shapes` are those of the model's tensors, which count only with a `device_memory`.
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
class PlanRules:
    """What a plan follows: `mode` within `bounds`, and the profile, if there is one; responses have `limits`."""

    mode: ParallelismMode
    bounds: Bounds
    limits: Limits
    profile: Profile | None = None


@dataclass(frozen=True, slots=True)
class LikeRounds:
    """What rounds of one kind, on about as many `devices`, with responses of about `length` tokens, took with engines of `size`.

    `ratio` is the mean of their seconds / price over the last MEAN_ROUNDS, as far as there are as many `rounds`.
    """

    kind: RoundKind
    devices: int
    length: float
    size: int
    ratio: float
    rounds: int = 1

    def alike(self, other: LikeRounds) -> bool:
        """Whether rounds are like these, whatever the size of their engines."""
        return self.kind is other.kind and _near(self.devices, other.devices) and _near(self.length, other.length)

    def after(self, new: LikeRounds) -> LikeRounds:
        """With another round."""
        rounds = min(self.rounds + 1, MEAN_ROUNDS)
        length = self.length + (new.length - self.length) / rounds
        ratio = self.ratio + (min(new.ratio, SLOWEST * self.ratio) - self.ratio) / rounds
        return replace(self, length=length, ratio=ratio, rounds=rounds)


def _near(first: float, second: float) -> bool:
    return max(first, second) <= ALIKE * min(first, second)


@dataclass(frozen=True, slots=True)
class ParallelismPlan:
    """Engines of `size` devices each, why, and what rounds have taught: bounded, and all that the next decision follows from.

    `forgone` are the seconds that rounds since the last change would have taken less with other sizes. `like` is what like rounds took,
    the last ones last, `seconds` what a round takes, and `costs` the seconds of the last change to each size. So many rounds in a row were `strained` by preemptions, or `quiet`. `failed` are sizes that engines could not take:
    they aren't tried again until something has changed.
    """

    size: int
    reason: str = ""
    failed: frozenset[int] = frozenset()
    forgone: Mapping[int, float] = field(default_factory=dict)
    like: tuple[LikeRounds, ...] = ()
    seconds: float | None = None
    strained: int = 0
    quiet: int = 0
    costs: Mapping[int, float] = field(default_factory=dict)

    def after_round(self, body: RoundMeasured, rules: PlanRules, left: int) -> ParallelismPlan:
        """The plan after a round, which `left` rounds follow. Driver and simulator call the same.

        Each round adds to each other size what the round would have taken less with it, never below 0 (a cumulative sum test: Page 1954,
        Continuous inspection schemes). Engines change once a sum exceeds what the change costs (ski rental: Karlin et al. 1988,
        Competitive snoopy caching) and EVIDENCE of a round. What a round takes with a size is its price times the ratio that like rounds
        had. The price is the profile's (`round_seconds`), or without one the round's tokens. Of a size that no like round has had, a profile
        alone says what it takes, corrected by all rounds of the size, or else by like rounds of others. A round that takes more than SLOWEST
        times what like rounds do counts with that.

        A size that no like round has had is tried, whatever the profile says: the next one up after TRIAL_ROUNDS short rounds in a row
        with preemptions above TRIAL_PREEMPTIONS of their responses, the next one down after as many without any, if two changes cost at
        most TRIAL_COST of the rounds that are left.

        Without a profile the cost of the first change isn't known, and counts as nothing. A round in another shape than the plan's, or whose work
        isn't known, teaches nothing.
        """
        work = body.work
        if rules.mode is ParallelismMode.FIXED or work is None or body.tensor_parallel != self.size:
            return self
        sizes = [size for size in rules.bounds.sizes if size not in self.failed]
        prices = _prices(body, work, rules, sizes)
        if not prices.get(self.size):
            return self
        length = body.generated_tokens / max(1, work.responses.samples)
        devices = body.engines * body.tensor_parallel
        this = LikeRounds(body.kind, devices, length, self.size, work.seconds / prices[self.size])
        plan = self._learned(this, prices, rules.profile is not None)
        if body.kind is RoundKind.SHORT:
            strained = body.preemptions > TRIAL_PREEMPTIONS * work.responses.samples
            plan = replace(
                plan,
                strained=self.strained + 1 if strained else 0,
                quiet=0 if body.preemptions else self.quiet + 1,
            )
        return plan._decided(this, sizes, rules.profile, left) if left > 0 else plan

    def _learned(self, this: LikeRounds, prices: Mapping[int, float], profiled: bool) -> ParallelismPlan:
        nearest = _nearest([rounds for rounds in self.like if rounds.size == this.size], this)
        others = [rounds for rounds in self.like if rounds is not nearest]
        like = (*others, nearest.after(this) if nearest else this)[-REMEMBERED:]
        ratios = {size: _ratio(like, size, this, profiled) for size in prices}
        would = {size: prices[size] * ratio for size, ratio in ratios.items() if ratio is not None}
        seconds = prices[this.size] * (min(this.ratio, SLOWEST * nearest.ratio) if nearest else this.ratio)
        now = would[this.size] if profiled else seconds
        forgone = {size: self.forgone.get(size, 0.0) for size in prices}
        forgone |= {size: max(0.0, forgone[size] + now - took) for size, took in would.items()}
        return replace(
            self,
            like=like,
            forgone={size: total for size, total in forgone.items() if total and size != this.size},
            seconds=seconds if self.seconds is None else self.seconds + RECENT * (seconds - self.seconds),
        )

    def _decided(self, this: LikeRounds, sizes: Sequence[int], profile: Profile | None, left: int) -> ParallelismPlan:
        assert self.seconds is not None
        known = {**(profile.change_seconds if profile else {}), **self.costs}
        costs = {size: known.get(size, max(known.values(), default=0.0)) for size in sizes}
        worth = {size: saved for size, saved in self.forgone.items() if saved > costs[size] + EVIDENCE * self.seconds}
        if worth:
            size = max(worth, key=worth.__getitem__)
            return self._changed(size, f"the last rounds would have taken {worth[size]:.3g} s less")
        if this.kind is RoundKind.LONG:
            return self
        larger = [size for size in sizes if size > self.size] if self.strained >= TRIAL_ROUNDS else []
        smaller = [size for size in sizes if size < self.size] if self.quiet >= TRIAL_ROUNDS else []
        tried = {rounds.size for rounds in self.like if rounds.alike(this)}
        for size in {*larger[:1], *smaller[-1:]} - tried:
            if costs[size] + costs[self.size] <= TRIAL_COST * left * self.seconds:
                why = "were preempted much" if larger else "had no preemptions"
                return self._changed(
                    size, f"{TRIAL_ROUNDS} short rounds {why}, and none like them had engines of {size}"
                )
        return self

    def _changed(self, size: int, why: str) -> ParallelismPlan:
        reason = f"{why}: {self.size} -> {size} devices an engine"
        return replace(self, size=size, reason=reason, forgone={}, strained=0, quiet=0)

    def reshaped(self, size: int, seconds: float) -> ParallelismPlan:
        """The plan after a change to engines of this size, which took so long."""
        return replace(self, costs={**self.costs, size: seconds})

    def bounded(self, mode: ParallelismMode, bounds: Bounds) -> ParallelismPlan:
        """The plan after an edit of `rollout.parallelism`: fixed shapes are those of the spec; only costs of changes are still known."""
        size = bounds.start if mode is ParallelismMode.FIXED else bounds.nearest(self.size)
        plan = self if size == self.size else self._changed(size, "rollout.parallelism was edited")
        return ParallelismPlan(plan.size, plan.reason, costs=self.costs)

    def on_other_pods(self) -> ParallelismPlan:
        """The plan once pods have come or gone: what has failed may be tried again."""
        return replace(self, failed=frozenset())

    def after_failure(self, failed: int, present: int) -> ParallelismPlan:
        """Engines of `failed` devices don't serve; they have `present` devices still."""
        size = present if self.size == failed else self.size
        return replace(self, size=size, failed=self.failed | {failed}, forgone={})

    def to_snapshot(self) -> dict[str, Any]:
        """As plain JSON values, for checkpoints."""
        snapshot: dict[str, Any] = _PLAN.dump_python(self, mode="json")
        return snapshot

    @classmethod
    def from_snapshot(cls, snapshot: Mapping[str, Any], bounds: Bounds) -> ParallelismPlan:
        """Inverse of `to_snapshot`, within bounds that may have changed since. Raises ValueError if it isn't one."""
        plan = _PLAN.validate_python(snapshot)
        size = bounds.nearest(plan.size)
        return plan if size == plan.size else replace(plan, size=size, forgone={})


_PLAN = TypeAdapter(ParallelismPlan)


def _prices(body: RoundMeasured, work: RoundWork, rules: PlanRules, sizes: Collection[int]) -> Mapping[int, float]:
    """What a round costs, all of its devices in engines of each size: seconds of a profile, or tokens."""
    if work.seconds <= 0 or not work.responses.completed:
        return {}
    if rules.profile is None:
        return dict.fromkeys(sizes, float(body.generated_tokens))
    devices, asked = body.engines * body.tensor_parallel, work_of(work, rules.limits.max_tokens)
    return {
        size: round_seconds(model, max(1, devices // size), rules.limits.max_sequences, asked)
        for size, model in rules.profile.throughput.items()
        if size in sizes
    }


def _nearest(like: Sequence[LikeRounds], this: LikeRounds) -> LikeRounds | None:
    alike = [rounds for rounds in like if rounds.alike(this)]
    return min(alike, key=lambda rounds: abs(rounds.length - this.length), default=None)


def _ratio(like: Sequence[LikeRounds], size: int, this: LikeRounds, profiled: bool) -> float | None:
    """Seconds / price of this round with engines of this size; None if nothing is known of it."""
    own = [rounds for rounds in like if rounds.size == size]
    if nearest := _nearest(own, this):
        return nearest.ratio
    if not profiled:
        return None
    return fmean(rounds.ratio for rounds in own or [rounds for rounds in like if rounds.alike(this)])
