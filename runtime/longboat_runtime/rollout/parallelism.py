"""How the devices of rollout pods are grouped into engines, for short and for long rounds. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from math import erf, exp, pi, sqrt
from statistics import fmean
from typing import Any

from pydantic import TypeAdapter

from longboat_crds.rollout import ParallelismMode
from longboat_runtime.problems import SpecProblem
from longboat_runtime.rollout.engine import EngineConfig, check_cache, check_parallelism, with_cache
from longboat_runtime.rollout.predictions import Estimates, Limits, Predictions
from longboat_runtime.rollout.throughput import Profile
from longboat_runtime.rounds.events import RoundKind, RoundMeasured

# RollPacker's parallelism planner (arXiv:2509.21009): preemptions that rise by more than RISE double tensor parallelism, and so many
# rounds of a kind without any halve it.
RISE, QUIET_ROUNDS = 1.05, 4
# How many rounds ahead a prediction is believed to hold, since loads change; and what a trial teaches of a profile that is wrong.
HORIZON, TRIAL_HORIZON = 16, 48
# What a change promises beyond its costs has to be more than the share MARGIN of the rounds' seconds: less may be chance. And the last
# rounds must have taken longer than with the other size by what the change costs, and by the share EVIDENCE of a round.
MARGIN, EVIDENCE = 0.03, 0.2
# Over how many rounds of a kind, before a change and after it, its gain is measured.
GAIN_ROUNDS = 4


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
class KindPlan:
    """The plan for rounds of one kind: engines of `tensor_parallel` devices each, and why.

    `preemptions` are those of the last round of the kind, None before the first; `quiet` counts such rounds in a row without any;
    `changes` counts changes of the plan, and `since` measured rounds of the kind since the last one. `expected` is the share of their
    seconds by which it was to make rounds shorter, if that was predicted, and `gained` the share by which it did, over at most
    GAIN_ROUNDS rounds, against `before`, the rates of as many before it. `rates` are those of the last rounds since.
    """

    tensor_parallel: int
    reason: str = ""
    preemptions: int | None = None
    quiet: int = 0
    changes: int = 0
    expected: float | None = None
    since: int = 0
    gained: float | None = None
    rates: tuple[float, ...] = ()
    before: tuple[float, ...] = ()

    def rated(self, rate: float) -> KindPlan:
        """After a round of the kind in the plan's shape, at this rate: seconds per token, or per second of a profile's price."""
        rates, since = (*self.rates, rate)[-GAIN_ROUNDS:], self.since + 1
        gained = self.gained
        if self.before and since <= GAIN_ROUNDS:
            gained = 1 - fmean(rates) / fmean(self.before)
        return replace(self, rates=rates, since=since, gained=gained)


_KIND_PLAN = TypeAdapter(KindPlan)


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


@dataclass(frozen=True, slots=True)
class Outlook:
    """What a choice of shapes is for: the next `rounds` rounds, of which the first is of kind `following`.

    Engines have `present` devices now; a change to a size takes `costs` seconds.
    """

    rounds: int
    following: RoundKind
    present: int
    costs: Mapping[int, float]


@dataclass(frozen=True, slots=True)
class Choice:
    """The sizes chosen, by kind, and by which share of their seconds rounds of each kind are expected to become shorter.

    If a kind `joins` the other, which has its size already, no changes between them are needed any more.
    """

    sizes: Mapping[RoundKind, int]
    gains: Mapping[RoundKind, float]
    joins: bool


def by_predictions(
    plan: Mapping[RoundKind, int], learned: Predictions, outlook: Outlook, sizes: Sequence[int]
) -> Choice | None:
    """Other sizes than those of `plan`, if they are worth their change; `sizes` are those that may be chosen.

    All combinations of sizes for short and for long rounds are compared with the present one over the next rounds, of which
    `learned.share_of_long` are long. What one saves, in seconds, is what its rounds take less, minus what its changes take more (two for
    each long round, if its size is another than that of short ones). MARGIN of the seconds of the rounds whose size changes is taken off.
    The best is chosen if it is worth more than the change before the next round, if each kind gains more than MARGIN, and if the last
    rounds have forgone more than the change costs and EVIDENCE of a round: who waits until then loses at most about twice as much as who
    knows (ski rental: Karlin et al. 1988, Competitive snoopy caching). A kind that takes the size of the other saves changes instead of
    costing one: nothing is waited for then. A kind that can't be predicted has the size of the other.

    While the profile is right, only what it says is faster is chosen. Once it is wrong, a size that the next round's kind hasn't had is
    worth a trial: the saving is an estimate with an error, which the first round of each kind shows, and if it turns out to be a loss, the change is
    undone. So those rounds save the mean, all later ones the mean of what is a saving (expected improvement: Mockus 1975, On Bayesian
    methods for seeking the extremum), and the change back costs as likely as there is a loss. Nothing is taken off for chance then, and
    what is learned holds for TRIAL_HORIZON rounds.
    """
    estimates, long_share, right = learned.estimates(), learned.share_of_long(), learned.right
    known = [kind for kind in RoundKind if estimates.knows(kind)]
    best, worth = None, 0.0
    for chosen in product(sizes, repeat=len(known)) if known else ():
        other = dict(zip(known, chosen, strict=True))
        candidate = {kind: other.get(kind, chosen[0]) for kind in RoundKind}
        if not (changed := [kind for kind in known if candidate[kind] != plan[kind]]):
            continue
        following = outlook.following
        trial = not right and following in changed and not learned.tried(following, candidate[following])
        ahead = min(outlook.rounds, TRIAL_HORIZON if trial else HORIZON)
        rounds = {RoundKind.LONG: ahead * long_share, RoundKind.SHORT: ahead * (1 - long_share)}
        seconds = {kind: rounds[kind] * estimates.seconds(kind, plan[kind]) for kind in changed}
        gains = {kind: estimates.gain(kind, plan[kind], candidate[kind]) for kind in changed}
        mean = sum(seconds[kind] * (1 - exp(-of)) for kind, (of, _) in gains.items())
        mean -= _alternations(candidate, rounds, outlook) - _alternations(plan, rounds, outlook)
        mean -= sum(MARGIN * seconds[kind] for kind in changed)
        if trial:
            error = sqrt(sum((seconds[kind] * exp(-of) * by) ** 2 for kind, (of, by) in gains.items()))
            share = min(1.0, len(changed) / max(sum(rounds[kind] for kind in changed), 1e-9))
            value = _worth(mean, error, share, outlook.costs[outlook.present])
        else:
            value = mean
            forgone = sum(learned.forgone(estimates, kind, plan[kind], candidate[kind]) for kind in changed)
            needed = EVIDENCE * sum(estimates.seconds(kind, plan[kind]) for kind in changed) / len(changed)
            needed += max(outlook.costs[candidate[kind]] for kind in changed)
            waits = forgone < needed or min(gain for gain, _ in gains.values()) <= MARGIN
            if waits and not _joins(plan, candidate):
                continue
        value -= _first(candidate, outlook) - _first(plan, outlook)
        if value > worth:
            best, worth = candidate, value
    if best is None:
        return None
    gained = {kind: 1 - exp(-estimates.gain(kind, plan[kind], best[kind])[0]) for kind in known}
    return Choice(best, gained, _joins(plan, best))


def _joins(plan: Mapping[RoundKind, int], other: Mapping[RoundKind, int]) -> bool:
    return len({*other.values()}) == 1 < len({*plan.values()}) and any(plan[kind] == other[kind] for kind in plan)


def _worth(mean: float, error: float, trial: float, back: float) -> float:
    """Of a saving with this mean and standard error above 0, which is known after the share `trial` of it; to undo it costs `back`."""
    standard = mean / error
    density, positive = exp(-(standard**2) / 2) / sqrt(2 * pi), (1 + erf(standard / sqrt(2))) / 2
    return trial * mean + (1 - trial) * (mean * positive + error * density) - (1 - positive) * back


def _alternations(plan: Mapping[RoundKind, int], rounds: Mapping[RoundKind, float], outlook: Outlook) -> float:
    """Seconds of the changes before and after each long round."""
    short, long = plan[RoundKind.SHORT], plan[RoundKind.LONG]
    return rounds[RoundKind.LONG] * (outlook.costs[short] + outlook.costs[long]) if short != long else 0.0


def _first(plan: Mapping[RoundKind, int], outlook: Outlook) -> float:
    """Seconds of the change before the next round, if it needs one."""
    wanted = plan[outlook.following]
    return outlook.costs[wanted] if wanted != outlook.present else 0.0


def _changed(plan: KindPlan, size: int, why: str) -> KindPlan:
    reason = f"{why}: {plan.tensor_parallel} -> {size} devices an engine"
    return KindPlan(size, reason, plan.preemptions, changes=plan.changes + 1, before=plan.rates)


def _predicted(plan: KindPlan, kind: RoundKind, choice: Choice, estimates: Estimates) -> KindPlan:
    size, gain = choice.sizes[kind], choice.gains.get(kind)
    if gain is None:  # no decision of its own
        return replace(
            plan, tensor_parallel=size, reason=f"{kind} rounds have the shape of the others until they are known"
        )
    before, after = (estimates.seconds(kind, of) for of in (plan.tensor_parallel, size))
    why = f"{kind} rounds are expected to take {after:.3g} s instead of {before:.3g} s"
    if gain <= 0 and choice.joins:
        why = f"{kind} rounds take {after:.3g} s instead of {before:.3g} s, but no change of shape any more"
    elif gain <= 0:
        why = f"{kind} rounds may take less than {before:.3g} s, as the profile has been wrong; by it they take {after:.3g} s"
    return replace(_changed(plan, size, why), expected=gain)


@dataclass(frozen=True, slots=True)
class PlanRules:
    """What plans follow: `mode` within `bounds`, and the profile if rounds are predicted by one."""

    mode: ParallelismMode
    bounds: Bounds
    limits: Limits
    profile: Profile | None = None


@dataclass(frozen=True, slots=True)
class Upcoming:
    """What follows a measured round: `rounds`, the next of kind `following`, which engines of `present` devices would begin."""

    following: RoundKind
    rounds: int
    present: int


@dataclass(frozen=True, slots=True)
class ParallelismPlan:
    """The plans of both kinds, and what rounds have taught.

    `failed` are sizes that engines could not take: they aren't tried again until something has changed.
    """

    kinds: Mapping[RoundKind, KindPlan]
    failed: frozenset[int] = field(default_factory=frozenset)
    predictions: Predictions = field(default_factory=Predictions)

    @classmethod
    def starting(cls, bounds: Bounds) -> ParallelismPlan:
        """As the spec has it."""
        return cls({kind: KindPlan(bounds.start) for kind in RoundKind})

    @property
    def sizes(self) -> Mapping[RoundKind, int]:
        """Devices of an engine in rounds of each kind."""
        return {kind: plan.tensor_parallel for kind, plan in self.kinds.items()}

    def after_round(self, body: RoundMeasured, rules: PlanRules, upcoming: Upcoming) -> ParallelismPlan:
        """The plan after a round: what it teaches (`learned`), then what follows from that (`decided`). Driver and simulator call the same."""
        return self.learned(body, rules.profile, rules.limits).decided(body, rules, upcoming)

    def decided(self, body: RoundMeasured, rules: PlanRules, upcoming: Upcoming) -> ParallelismPlan:
        """The plan for the rounds to come, by the rule of its mode: predictions if there is a profile, else preemptions."""
        if rules.profile is None:
            return self.measured(rules.mode, body.kind, body.preemptions, rules.bounds)
        return self.predicted(rules.profile, upcoming.present, upcoming.following, upcoming.rounds, rules.bounds)

    def measured(self, mode: ParallelismMode, kind: RoundKind, preemptions: int, bounds: Bounds) -> ParallelismPlan:
        """The plan after a round of this kind."""
        if mode is ParallelismMode.FIXED:
            return self.bounded(mode, bounds)
        sizes = [size for size in bounds.sizes if size not in self.failed]
        after = by_preemptions(self.kinds[kind], kind, preemptions, sizes)
        return replace(self, kinds={**self.kinds, kind: after})

    def learned(self, body: RoundMeasured, profile: Profile | None, limits: Limits) -> ParallelismPlan:
        """What a round teaches: what rounds take, if there is a profile, and what its kind's last change has gained.

        For that, rounds are brought to equal lengths by the price that the profile has for each with engines of its smallest size, and
        without a profile by their tokens. A round in another shape than the plan's, or whose work isn't known, says nothing of it.
        """
        plan, predictions, per = self.kinds[body.kind], self.predictions, float(body.generated_tokens)
        if profile is not None:
            predictions = predictions.measured(body, profile.throughput, limits)
            prices = predictions.rounds[-1].prices if predictions.number > self.predictions.number else {0: 0.0}
            per = prices[min(prices)]
        if body.work is not None and body.tensor_parallel == plan.tensor_parallel and per:
            plan = plan.rated(body.work.seconds / per)
        return replace(self, kinds={**self.kinds, body.kind: plan}, predictions=predictions)

    def predicted(
        self, profile: Profile, present: int, following: RoundKind, rounds: int, bounds: Bounds
    ) -> ParallelismPlan:
        """The plan by what rounds will take (`by_predictions`): `rounds` follow, the next of kind `following`.

        Engines have `present` devices now. To be called after `learned`.
        """
        learned, profiled = self.predictions, profile.throughput.keys()
        planned = self.sizes
        if rounds < 1 or not {*planned.values(), present} <= profiled:
            return self
        outlook = Outlook(rounds, following, present, {**profile.change_seconds, **learned.costs})
        sizes = [size for size in bounds.sizes if size not in self.failed and size in profiled]
        choice = by_predictions(planned, learned, outlook, sizes)
        if choice is None:
            return self
        estimates = learned.estimates()
        kinds = {
            kind: one if choice.sizes[kind] == planned[kind] else _predicted(one, kind, choice, estimates)
            for kind, one in self.kinds.items()
        }
        return replace(self, kinds=kinds)

    def reshaped(self, size: int, seconds: float) -> ParallelismPlan:
        """The plan after a change to engines of this size, which took so long."""
        return replace(self, predictions=self.predictions.reshaped(size, seconds))

    def bounded(self, mode: ParallelismMode, bounds: Bounds) -> ParallelismPlan:
        """The plan after an edit of mode or bounds: fixed shapes are those of the spec; what has failed may be tried again."""

        def within(plan: KindPlan) -> KindPlan:
            size = bounds.start if mode is ParallelismMode.FIXED else bounds.nearest(plan.tensor_parallel)
            return plan if size == plan.tensor_parallel else _changed(plan, size, "rollout.parallelism was edited")

        kinds = {kind: replace(within(plan), rates=(), before=()) for kind, plan in self.kinds.items()}
        return ParallelismPlan(kinds, predictions=self.predictions)

    def on_other_pods(self) -> ParallelismPlan:
        """The plan once pods have come or gone: what has failed may be tried again."""
        return replace(self, failed=frozenset())

    def after_failure(self, failed: int, present: int) -> ParallelismPlan:
        """Engines of `failed` devices don't serve; they have `present` devices still. A change that failed gains nothing."""
        undone: dict[str, Any] = {"tensor_parallel": present, "expected": None, "gained": None, "before": ()}
        kinds = {
            kind: replace(one, **undone) if one.tensor_parallel == failed else one for kind, one in self.kinds.items()
        }
        return replace(self, kinds=kinds, failed=self.failed | {failed})

    def to_snapshot(self) -> dict[str, Any]:
        """As plain JSON values, for checkpoints."""
        return {
            "kinds": {str(kind): _KIND_PLAN.dump_python(plan, mode="json") for kind, plan in self.kinds.items()},
            "failed": sorted(self.failed),
            "predictions": self.predictions.to_snapshot(),
        }

    @classmethod
    def from_snapshot(cls, snapshot: Mapping[str, Any], bounds: Bounds) -> ParallelismPlan:
        """Inverse of `to_snapshot`, within bounds that may have changed since. Raises KeyError, TypeError or ValueError if it isn't one."""
        kinds = {RoundKind(kind): _KIND_PLAN.validate_python(plan) for kind, plan in snapshot["kinds"].items()}
        within = {kind: replace(of, tensor_parallel=bounds.nearest(of.tensor_parallel)) for kind, of in kinds.items()}
        predictions = Predictions.from_snapshot(snapshot.get("predictions", {}))
        return cls({**cls.starting(bounds).kinds, **within}, frozenset(snapshot["failed"]), predictions)
