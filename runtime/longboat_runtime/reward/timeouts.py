"""Learned timeouts: how long a grade may take, by what correct responses to the same problem took. Pure.

A limit is clamp(factor x anchor, minSeconds, timeoutSeconds), of a grade's own seconds (`result.FunctionOutcome`); where a grade has
several test cases, of each, and what the grade took is what its longest case took: a limit that lets this one through lets all through.
The form is RollPacker's (arXiv:2509.21009), whose anchor is the longest correct run so far. Such a maximum
never forgets one odd run, says nothing of problems that were solved twice, and knows no more of what limits have cut off. So here the
logarithms of correct times are normal, each problem with its location and its spread, both drawn towards those of its domain by how little
is known of it (the random-effects model of one-way classification), and the anchor is what 39 of 40 correct runs of the problem are
expected to stay below, uncertainty included: few runs make a wide limit, none the domain's, and a domain of which nothing is known has the
hard limit. A factor of times is a shift of logarithms, so the hundredfold range between problems costs fast ones nothing.

What keeps limits from feeding on themselves:

* The first FREE_RESPONSES responses to every problem run to the hard limit.
* The share `auditFraction` of later ones, chosen by a hash of the sample's id, runs to the hard limit too, and keeps its true grade.
* Every correct run counts one over the probability that it was allowed to take so long (Horvitz and Thompson 1952): an audit that took
  longer than its limit stands for all those that were killed.
* A kill tells nothing: whether it was wrong is known from audits alone. A grade that was cancelled is no grade: it has no event.
* A correct run has a score above 0; of kind Sandbox the score of 1, whatever the credit: all test cases passed. A program that passes a
  part, often the small cases alone, says nothing of how long the whole takes: its times would narrow the limit until it cuts off correct
  programs, and those of the cases in which it hangs would widen it. So a kill that costs such a program a part of its credit isn't counted
  as wrong, and a problem of which no program has passed all cases has its domain's limit.

Limits change between rounds only: those of a round are frozen when it opens. All that is learned is a fold of events, so that it
belongs to a checkpoint as the ledger does.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

from longboat_crds.reward_kinds import RewardKind
from longboat_crds.rewards import RewardSpec
from longboat_runtime.rounds import events
from longboat_runtime.samples import GradeTime, SampleId, TimeLimit

# So many responses to each problem run to the hard limit before one of it has another.
FREE_RESPONSES = 2
# The share of correct runs that the anchor covers, as standard deviations of a normal distribution: 0.975. Over 12 simulated runs of the mix
# of `bench.rewards`, limits kill 0.7 % of correct responses and take 1.58 x less CPU seconds; with 0.95 it is 1.0 %, in some runs more,
# and 1.62 x.
COVERED = 1.96
# Problems of which more is remembered than what they have told their domain, those used last; and domains.
MOST_PROBLEMS, MOST_DOMAINS = 10_000, 256
# What is assumed of logarithms before anything is known: the spread within a problem, and that of problems in a domain. Each counts as
# much as so many observations. Correct times of problems differ a hundredfold, which is four spreads of 1.15.
_SPREAD, _OF_PROBLEMS, _COUNTS_AS = 0.5, 1.15, 2.0
# How many observations of its own a problem's spread needs to weigh as much as its domain's.
_OWN_SPREAD = 8.0
# Times below are taken for this: what such a grade measures is the grader.
_LEAST_SECONDS = 1e-3


@dataclass(frozen=True, slots=True)
class Rule:
    """`rewards[].learnedTimeout` of one reward; `hard` is its `timeoutSeconds`. With `cases` only a score of 1 is that of a correct run."""

    factor: float
    least: float
    hard: float
    audits: float
    cases: bool = False

    @classmethod
    def of(cls, rewards: Iterable[RewardSpec]) -> dict[str, Rule]:
        """By name of the reward, for those that have one."""
        return {
            reward.name: cls(
                learned.factor,
                learned.min_seconds,
                reward.timeout_seconds,
                learned.audit_fraction,
                reward.kind is RewardKind.SANDBOX,
            )
            for reward in rewards
            if (learned := reward.learned_timeout) is not None
        }

    def correct(self, score: float | None) -> bool:
        """Whether a grade with this score was of a correct run; None if it timed out."""
        return score is not None and (score >= 1.0 if self.cases else score > 0.0)

    def limit(self, anchor: float) -> float:
        """Seconds, at most the hard limit."""
        return min(max(self.factor * anchor, self.least), self.hard)

    def audited(self, name: str, sample: SampleId) -> bool:
        """Whether the grade of this sample by the reward of this name is an audit."""
        drawn = hashlib.blake2b(f"audit/{name}/{sample}".encode(), digest_size=8).digest()
        return int.from_bytes(drawn, "big") < self.audits * 2**64


class ProblemTimes(NamedTuple):
    """What is known of one problem: how many responses were graded, and the logarithms of what correct ones took, weighted.

    `weight` and `squares` are the sums of weights and of their squares, `deviation` is the sum of weighted squared deviations from `mean`.
    """

    graded: int = 0
    weight: float = 0.0
    squares: float = 0.0
    mean: float = 0.0
    deviation: float = 0.0

    @property
    def effective(self) -> float:
        """How many equally weighted observations tell as much (Kish)."""
        return self.weight**2 / self.squares if self.squares else 0.0

    @property
    def degrees(self) -> float:
        """Of freedom of `deviation`."""
        return self.weight - self.squares / self.weight if self.weight else 0.0

    def after(self, logarithm: float | None, weight: float) -> ProblemTimes:
        """With one more graded response; None unless it was correct."""
        if logarithm is None:
            return self._replace(graded=self.graded + 1)
        total, off = self.weight + weight, logarithm - self.mean
        mean = self.mean + weight * off / total
        deviation = self.deviation + weight * off * (logarithm - mean)
        return ProblemTimes(self.graded + 1, total, self.squares + weight**2, mean, deviation)


_UNKNOWN = ProblemTimes()


@dataclass(frozen=True, slots=True)
class DomainTimes:
    """Sums over the problems of a domain that have correct runs, forgotten ones included."""

    problems: int = 0
    means: float = 0.0
    squared_means: float = 0.0
    # Of one over each problem's effective number of runs.
    inverse: float = 0.0
    deviation: float = 0.0
    degrees: float = 0.0

    def changed(self, before: ProblemTimes, after: ProblemTimes) -> DomainTimes:
        """A problem of the domain has told more."""
        known, knows = bool(before.weight), bool(after.weight)
        return DomainTimes(
            self.problems + knows - known,
            self.means + after.mean - before.mean,
            self.squared_means + after.mean**2 - before.mean**2,
            self.inverse + (1 / after.effective if knows else 0.0) - (1 / before.effective if known else 0.0),
            self.deviation + after.deviation - before.deviation,
            self.degrees + after.degrees - before.degrees,
        )

    @property
    def within(self) -> float:
        """The variance of a problem's correct runs."""
        return (self.deviation + _COUNTS_AS * _SPREAD**2) / (self.degrees + _COUNTS_AS)

    def location(self) -> tuple[float, float]:
        """The mean of a problem's mean of which nothing is known, and its variance. There is a problem that is known."""
        mean, within = self.means / self.problems, self.within * self.inverse / self.problems
        degrees = self.problems - 1
        among = max(self.squared_means - self.problems * mean**2 - degrees * within, 0.0)
        between = (among + _COUNTS_AS * _OF_PROBLEMS**2) / (degrees + _COUNTS_AS)
        return mean, between + (between + within) / self.problems


@dataclass(frozen=True, slots=True)
class _Prior:
    """What a domain says of each of its problems: mean and variance of its location, and the variance within it."""

    mean: float
    variance: float
    within: float

    def anchor(self, problem: ProblemTimes) -> float:
        """Seconds that 39 of 40 correct runs of the problem are expected to stay below."""
        runs = problem.effective
        deviation = problem.deviation / problem.weight * runs if runs else 0.0
        within = (deviation + _OWN_SPREAD * self.within) / (max(runs - 1.0, 0.0) + _OWN_SPREAD)
        variance = 1 / (runs / within + 1 / self.variance)
        mean = variance * (runs * problem.mean / within + self.mean / self.variance)
        return math.exp(min(mean + COVERED * math.sqrt(within + variance), 100.0))


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits by one reward, as they were at one moment."""

    name: str
    rule: Rule
    problems: Mapping[int, ProblemTimes]
    priors: Mapping[str, _Prior]

    def of(self, sample: SampleId, domain: str) -> TimeLimit:
        """The limit of a sample's grade; none for the first responses to a problem, and where nothing is known."""
        problem, prior = self.problems.get(sample.row, _UNKNOWN), self.priors.get(domain)
        if prior is None or sample.index < FREE_RESPONSES - problem.graded:
            return TimeLimit()
        return TimeLimit(self.rule.limit(prior.anchor(problem)), self.rule.audited(self.name, sample))

    def of_domain(self, domain: str) -> tuple[float, float] | None:
        """The limits of a problem in the middle of the domain, and of one of which nothing is known, in seconds; None if it hasn't any."""
        prior = self.priors.get(domain)
        if prior is None:
            return None
        middle = math.exp(min(prior.mean + COVERED * math.sqrt(prior.within), 100.0))
        return self.rule.limit(middle), self.rule.limit(prior.anchor(_UNKNOWN))


@dataclass(slots=True)
class Tally:
    """What became of the grades that had a learned limit. Seconds are own seconds.

    Of the `kills`, `kill_room` is the time from the limit to the hard one. Of the `audits`, `wrong` were correct beyond the limit: those
    would have been killed wrongly. All that went on beyond it took `beyond` of the `room` up to the hard limit.
    """

    grades: int = 0
    kills: int = 0
    kill_room: float = 0.0
    audits: int = 0
    wrong: int = 0
    room: float = 0.0
    beyond: float = 0.0

    def add(self, time: GradeTime, hard: float, *, correct: bool) -> None:
        """One grade with a limit."""
        assert time.limit is not None
        self.grades += 1
        self.kills += time.killed
        self.kill_room += (hard - time.limit) * time.killed
        self.audits += time.audit
        if time.audit and time.seconds > time.limit:
            self.wrong += correct
            self.room += hard - time.limit
            self.beyond += time.seconds - time.limit

    @property
    def saved(self) -> float:
        """Estimated seconds that kills have saved: what audits went on for, as a share of the time that they had. 0 without such audits."""
        return self.kill_room * min(self.beyond / self.room, 1.0) if self.room else 0.0


@dataclass(slots=True)
class RewardTimes:
    """What has been learned for one reward. `slow` is the mean logarithm above which a problem is among the slowest tenth."""

    name: str
    rule: Rule
    problems: dict[int, ProblemTimes] = field(default_factory=dict)
    domains: dict[str, DomainTimes] = field(default_factory=dict)
    slow: float = math.inf
    total: Tally = field(default_factory=Tally)
    slowest: Tally = field(default_factory=Tally)
    of_domains: dict[str, Tally] = field(default_factory=dict)

    def domain(self, name: str) -> str:
        """Its name here: domains beyond MOST_DOMAINS are one."""
        return name if name in self.domains or len(self.domains) < MOST_DOMAINS else ""

    def add(self, row: int, domain: str, time: GradeTime, *, correct: bool) -> None:
        """One grade."""
        domain = self.domain(domain)
        before = self.problems.pop(row, _UNKNOWN)
        if time.limit is not None:
            tallies = [self.total, self.of_domains.setdefault(domain, Tally())]
            if before.weight and before.mean >= self.slow:
                tallies.append(self.slowest)
            for tally in tallies:
                tally.add(time, self.rule.hard, correct=correct)
        logarithm = math.log(max(time.seconds, _LEAST_SECONDS)) if correct else None
        rare = time.audit and time.limit is not None and time.seconds > time.limit
        after = before.after(logarithm, 1 / self.rule.audits if rare else 1.0)
        self.problems[row] = after
        if correct:
            self.domains[domain] = self.domains.get(domain, DomainTimes()).changed(before, after)
        if len(self.problems) > MOST_PROBLEMS:
            del self.problems[next(iter(self.problems))]

    def freeze(self) -> Limits:
        """The limits as of now; which problems are the slowest is settled with them."""
        means = sorted(problem.mean for problem in self.problems.values() if problem.weight)
        self.slow = means[len(means) * 9 // 10] if means else math.inf
        priors = {name: _Prior(*domain.location(), domain.within) for name, domain in self.domains.items()}
        return Limits(self.name, self.rule, dict(self.problems), priors)

    def to_snapshot(self) -> dict[str, Any]:
        """As JSON values; rows in the order in which they were used."""
        return {
            "problems": [[row, *problem] for row, problem in self.problems.items()],
            "domains": {name: asdict(domain) for name, domain in self.domains.items()},
            "slow": self.slow if math.isfinite(self.slow) else None,
            "total": asdict(self.total),
            "slowest": asdict(self.slowest),
            "of_domains": {name: asdict(tally) for name, tally in self.of_domains.items()},
        }

    @classmethod
    def from_snapshot(cls, name: str, rule: Rule, snapshot: Mapping[str, Any]) -> RewardTimes:
        """The inverse of `to_snapshot`. Raises KeyError or TypeError if it isn't one."""
        return cls(
            name,
            rule,
            {row: ProblemTimes(*of) for row, *of in snapshot["problems"]},
            {domain: DomainTimes(**of) for domain, of in snapshot["domains"].items()},
            math.inf if snapshot["slow"] is None else snapshot["slow"],
            Tally(**snapshot["total"]),
            Tally(**snapshot["slowest"]),
            {domain: Tally(**of) for domain, of in snapshot["of_domains"].items()},
        )


class LearnedTimeouts:
    """What has been learned for all rewards that have `learnedTimeout`, as a fold of events. `domain` gives that of a dataset row.

    `rewards` is empty where nothing is learned. A response that is graded again, since its data was lost, counts once.
    """

    def __init__(self, rewards: Sequence[RewardSpec], domain: Callable[[int], str]) -> None:
        self._domain = domain
        self.rewards = {name: RewardTimes(name, rule) for name, rule in Rule.of(rewards).items()}
        # Graded samples of prompts that are under way.
        self._counted: set[SampleId] = set()
        self._rounds: dict[int, list[Limits]] = {}
        self._newest: list[Limits] = []

    def fold(self, body: events.Body) -> None:
        """Folds an event that the ledger has folded."""
        match body:
            case events.Started():
                self._newest = self._freeze()
            case events.RoundOpened(round=number):
                self._rounds[number] = self._newest = self._freeze()
            case events.Graded(sample=sample) if sample not in self._counted:
                self._learn(body)
            case events.StepCommitted(round=number, samples=samples):
                self._rounds.pop(number, None)
                self._counted.difference_update(samples)
            case events.GroupDropped(prompt=prompt) | events.GroupDeferred(prompt=prompt):
                self._counted = {sample for sample in self._counted if sample.prompt != prompt}

    def limits(self, sample: SampleId, round_: int) -> dict[str, TimeLimit]:
        """The limits of a sample's grades in a round, by reward; those of a round that a former driver opened are this driver's first."""
        domain = self._domain(sample.row)
        frozen = self._rounds.get(round_, self._newest)
        return {of.name: of.of(sample, self.rewards[of.name].domain(domain)) for of in frozen}

    def newest(self) -> Sequence[Limits]:
        """The limits of the newest round, by each reward."""
        return self._newest

    def to_snapshot(self) -> dict[str, Any]:
        """As JSON values; empty where nothing is learned."""
        if not self.rewards:
            return {}
        counted = [list(sample) for sample in sorted(self._counted)]
        return {"counted": counted, "rewards": {name: of.to_snapshot() for name, of in self.rewards.items()}}

    def restore(self, snapshot: Mapping[str, Any]) -> None:
        """Continues from a snapshot, for those rewards that it has. Raises KeyError or TypeError if it isn't one."""
        if not snapshot:
            return
        self._counted = {SampleId(*sample) for sample in snapshot["counted"]}
        for name, of in self.rewards.items():
            if name in snapshot["rewards"]:
                self.rewards[name] = RewardTimes.from_snapshot(name, of.rule, snapshot["rewards"][name])

    def start_over(self) -> None:
        """Prepares for another job: all prompts are launched again."""
        self._counted.clear()

    def _freeze(self) -> list[Limits]:
        return [of.freeze() for of in self.rewards.values()]

    def _learn(self, graded: events.Graded) -> None:
        row = graded.sample.row
        for name, time in graded.times.items():
            of = self.rewards.get(name)
            # A grader error has no part: it says nothing about the response.
            if of is not None and name in graded.parts:
                of.add(row, self._domain(row), time, correct=of.rule.correct(graded.parts[name]))
                self._counted.add(graded.sample)
