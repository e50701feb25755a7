"""Plans how the devices of rollout pods are grouped into engines, from round to round. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean, median
from typing import Any

from pydantic import TypeAdapter

from longboat_crds.problems import SpecProblem
from longboat_runtime.rollout.engine import EngineConfig, check_cache, check_parallelism, with_cache
from longboat_runtime.rollout.round_seconds import Limits, round_seconds, work_of
from longboat_runtime.rollout.throughput import Profile
from longboat_runtime.rounds.measurements import RoundMeasured, RoundWork
from longboat_runtime.rounds.round_kind import RoundKind

# Savings below this share of a round count as chance.
EVIDENCE = 0.4
# Rounds of one kind are similar if their devices and the mean lengths of their responses differ by no more than this factor.
SIMILAR = 1.25
# Of similar rounds, the newest SIMILAR_ROUNDS count. At most REMEMBERED groups of them are kept.
SIMILAR_ROUNDS, REMEMBERED = 8, 64
# A trial follows TRIAL_ROUNDS short rounds in a row with more preemptions than this share of their responses, or with none. Both of its
# changes may cost at most this share of the rounds that are left.
TRIAL_ROUNDS, TRIAL_PREEMPTIONS, TRIAL_COST = 2, 0.5, 0.05


def permitted(
    config: EngineConfig,
    model: Mapping[str, Any],
    shapes: Mapping[str, Sequence[int]],
    max_length: int,
    devices: int,
) -> tuple[int, ...]:
    """Returns the sizes of engines, ascending, that a pod of `devices` can have.

    Equal engines of such a size take all devices, and vLLM can split the model over each. Its KV cache, if `config` says how large it
    is, holds a sequence of `max_length` tokens. `model` is config.json by standard names. `shapes` are those of the model's
    tensors; they count only with a `device_memory`.
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
    """Bounds a plan's choice: `sizes` of engines, ascending, and `start`, the spec's own, which is one of them."""

    sizes: tuple[int, ...]
    start: int

    def within(self, least: int | None, most: int | None) -> Bounds:
        """Returns the bounds with only the sizes from `least` to `most`, where given; with only `start` if that leaves none."""
        return replace(self, sizes=tuple(s for s in self.sizes if (least or s) <= s <= (most or s)) or (self.start,))

    def nearest(self, size: int) -> int:
        """Returns the size itself if it is one of `sizes`, else the nearest of them, and of two the smaller."""
        return min(self.sizes, key=lambda other: (abs(other - size), other))


@dataclass(frozen=True, slots=True)
class PlanRules:
    """Holds what a plan depends on besides rounds: its `bounds`, the `limits` of responses, and the profile, if there is one."""

    bounds: Bounds
    limits: Limits
    profile: Profile | None = None


@dataclass(frozen=True, slots=True)
class SimilarRounds:
    """Summarises rounds of one kind, on about as many `devices`, with responses of about `length` tokens and engines of one `size`.

    `ratios` are the seconds / price of the last SIMILAR_ROUNDS of them.
    """

    kind: RoundKind
    devices: int
    length: float
    size: int
    ratios: tuple[float, ...]

    @property
    def ratio(self) -> float:
        """Returns the median ratio: a round that lost an engine says nothing about its size."""
        return median(self.ratios)

    def is_similar(self, other: SimilarRounds) -> bool:
        """Returns whether rounds are similar, whatever the size of their engines."""
        return self.kind is other.kind and _near(self.devices, other.devices) and _near(self.length, other.length)

    def after(self, new: SimilarRounds) -> SimilarRounds:
        """Returns the summary with one more round."""
        ratios = (*self.ratios, *new.ratios)[-SIMILAR_ROUNDS:]
        return replace(self, length=self.length + (new.length - self.length) / len(ratios), ratios=ratios)


def _near(first: float, second: float) -> bool:
    return max(first, second) <= SIMILAR * min(first, second)


@dataclass(frozen=True, slots=True)
class ParallelismPlan:
    """Holds the present `size` of engines, the reason for it, and all that rounds have shown: bounded.

    `savings` are the seconds that rounds since the last change would have been shorter with other sizes, `similar` what rounds took, the
    newest last, and `costs` the seconds of the last change to each size. So many short rounds in a row were `preempted` much, or `quiet`.
    `failed` are sizes that engines could not take: they aren't tried again until something has changed.
    """

    size: int
    reason: str = ""
    failed: frozenset[int] = frozenset()
    savings: Mapping[int, float] = field(default_factory=dict)
    similar: tuple[SimilarRounds, ...] = ()
    preempted: int = 0
    quiet: int = 0
    costs: Mapping[int, float] = field(default_factory=dict)

    def after_round(self, body: RoundMeasured, rules: PlanRules, rounds_left: int) -> ParallelismPlan:
        """Returns the plan after a round that `rounds_left` others follow. Driver and simulator both call this.

        After each round, every other size of which something is known is credited with the seconds that it would have saved. A sum never
        falls below 0 (a cumulative sum test: Page 1954, Continuous inspection schemes). While rounds are left, engines change to a size
        once its sum exceeds the cost of the change (ski rental: Karlin et al. 1988, Competitive snoopy caching) plus EVIDENCE of a round.

        What a round takes with a size is its price times the median ratio of seconds to price in similar rounds with that size. The
        price is the profile's (`round_seconds`), or without one the round's tokens. With a profile, a size that no similar round has had
        gets the mean ratio of its other groups of rounds, or else of similar ones with other sizes. Without one, nothing is known of it.

        If no size has saved enough, one that no similar round has had may be tried, whatever the profile says. That is the next larger
        one after TRIAL_ROUNDS short rounds in a row with preemptions above TRIAL_PREEMPTIONS of their responses, or the next smaller one
        after as many without any. Two changes must cost at most TRIAL_COST of the rounds that are left.

        Without a profile the cost of the first change isn't known, and counts as nothing. Rounds with another size than the plan's, or
        of unknown work or price, are ignored, and so are all rounds if there is no choice of sizes.
        """
        work = body.work
        sizes = [size for size in rules.bounds.sizes if size not in self.failed]
        if len(sizes) < 2 or work is None or body.tensor_parallel != self.size:
            return self
        prices = _prices(body, work, rules, sizes)
        if not prices.get(self.size):
            return self
        length = body.generated_tokens / max(1, work.responses.samples)
        devices = body.engines * body.tensor_parallel
        this = SimilarRounds(body.kind, devices, length, self.size, (work.seconds / prices[self.size],))
        plan = self._learned(this, prices, rules.profile is not None)
        if body.kind is RoundKind.SHORT:
            much = body.preemptions > TRIAL_PREEMPTIONS * work.responses.samples
            quiet = 0 if body.preemptions else self.quiet + 1
            plan = replace(plan, preempted=self.preempted + 1 if much else 0, quiet=quiet)
        return plan._decided(this, work.seconds, sizes, rules.profile, rounds_left) if rounds_left > 0 else plan

    def _learned(self, this: SimilarRounds, prices: Mapping[int, float], profiled: bool) -> ParallelismPlan:
        nearest = _nearest([rounds for rounds in self.similar if rounds.size == this.size], this)
        others = [rounds for rounds in self.similar if rounds is not nearest]
        similar = (*others, nearest.after(this) if nearest else this)[-REMEMBERED:]
        ratios = {size: _ratio(similar, size, this, profiled) for size in prices}
        expected = {size: prices[size] * ratio for size, ratio in ratios.items() if ratio is not None}
        savings = {size: self.savings.get(size, 0.0) for size in prices if size != this.size}
        for size in savings.keys() & expected.keys():
            savings[size] = max(0.0, savings[size] + expected[this.size] - expected[size])
        return replace(self, similar=similar, savings=savings)

    def _decided(
        self, this: SimilarRounds, seconds: float, sizes: Sequence[int], profile: Profile | None, rounds_left: int
    ) -> ParallelismPlan:
        measured = {**(profile.change_seconds if profile else {}), **self.costs}
        costs = {size: measured.get(size, max(measured.values(), default=0.0)) for size in sizes}
        worthwhile = {size: saved for size, saved in self.savings.items() if saved > costs[size] + EVIDENCE * seconds}
        if worthwhile:
            size = max(worthwhile, key=worthwhile.__getitem__)
            return self._changed(size, f"recent rounds would have been {worthwhile[size]:.3g} s shorter")
        if this.kind is RoundKind.LONG:
            return self
        larger = [size for size in sizes if size > self.size] if self.preempted >= TRIAL_ROUNDS else []
        smaller = [size for size in sizes if size < self.size] if self.quiet >= TRIAL_ROUNDS else []
        tried = {rounds.size for rounds in self.similar if rounds.is_similar(this)}
        for size in {*larger[:1], *smaller[-1:]} - tried:
            if costs[size] + costs[self.size] <= TRIAL_COST * rounds_left * seconds:
                preemptions = "many" if larger else "no"
                return self._changed(
                    size,
                    f"{TRIAL_ROUNDS} short rounds had {preemptions} preemptions, and {size} is untried for such rounds",
                )
        return self

    def _changed(self, size: int, why: str) -> ParallelismPlan:
        reason = f"{why}: {self.size} -> {size} devices per engine"
        return replace(self, size=size, reason=reason, savings={}, preempted=0, quiet=0)

    def reshaped(self, size: int, seconds: float) -> ParallelismPlan:
        """Returns the plan after a change to engines of this size, which took so long."""
        return replace(self, costs={**self.costs, size: seconds})

    def bounded(self, bounds: Bounds) -> ParallelismPlan:
        """Returns the plan after an edit of `rollout.parallelism`: of what rounds have shown, it keeps only the costs of changes."""
        size = bounds.nearest(self.size)
        plan = self if size == self.size else self._changed(size, "rollout.parallelism was edited")
        return ParallelismPlan(plan.size, plan.reason, costs=self.costs)

    def on_other_pods(self) -> ParallelismPlan:
        """Returns the plan once pods have come or gone: what has failed may be tried again."""
        return replace(self, failed=frozenset())

    def after_failure(self, failed: int, present: int) -> ParallelismPlan:
        """Returns the plan once engines of `failed` devices could not serve; they have `present` devices still."""
        size = present if self.size == failed else self.size
        return replace(self, size=size, failed=self.failed | {failed}, savings={})

    def to_snapshot(self) -> dict[str, Any]:
        """Returns the plan as plain JSON values, for checkpoints."""
        snapshot: dict[str, Any] = _PLAN.dump_python(self, mode="json")
        return snapshot

    @classmethod
    def from_snapshot(cls, snapshot: Mapping[str, Any], bounds: Bounds) -> ParallelismPlan:
        """Restores a plan from its snapshot, within bounds that may have changed since. Raises ValueError if `snapshot` isn't one."""
        plan = _PLAN.validate_python(snapshot)
        size = bounds.nearest(plan.size)
        return plan if size == plan.size else replace(plan, size=size, savings={})


_PLAN = TypeAdapter(ParallelismPlan)


def _prices(body: RoundMeasured, work: RoundWork, rules: PlanRules, sizes: Collection[int]) -> Mapping[int, float]:
    """Prices the round for each size, all of its devices in engines of that size: in seconds of a profile, or in tokens."""
    if work.seconds <= 0 or not work.responses.completed:
        return {}
    if rules.profile is None:
        return dict.fromkeys(sizes, float(body.generated_tokens))
    devices, round_work = body.engines * body.tensor_parallel, work_of(work, rules.limits.max_tokens)
    return {
        size: round_seconds(model, max(1, devices // size), rules.limits.max_sequences, round_work)
        for size, model in rules.profile.throughput.items()
        if size in sizes
    }


def _nearest(groups: Sequence[SimilarRounds], this: SimilarRounds) -> SimilarRounds | None:
    similar = [rounds for rounds in groups if rounds.is_similar(this)]
    return min(similar, key=lambda rounds: abs(rounds.length - this.length), default=None)


def _ratio(groups: Sequence[SimilarRounds], size: int, this: SimilarRounds, profiled: bool) -> float | None:
    """Returns the ratio of seconds to price for this round with engines of this size; None if nothing is known of it."""
    own = [rounds for rounds in groups if rounds.size == size]
    if nearest := _nearest(own, this):
        return nearest.ratio
    if not profiled:
        return None
    return fmean(rounds.ratio for rounds in own or [rounds for rounds in groups if rounds.is_similar(this)])
