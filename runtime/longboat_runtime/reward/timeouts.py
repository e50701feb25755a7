"""Learned timeouts: how long a grade may take, by what correct responses to the same problem took. Pure.

A limit is clamp(factor x anchor, minSeconds, timeoutSeconds), of a grade's own seconds (`result.FunctionOutcome`); where a grade has
several test cases, of each, and what the grade took is what its longest case took: a limit that lets this one through lets all through.
The anchor is what 39 of 40 correct runs of the problem are expected to stay below (`anchors`); a domain of which nothing is known has the
hard limit.

What keeps limits from feeding on themselves:

* The first FREE_RESPONSES responses to every problem run to the hard limit: a group's lowest numbers, as many as the problem lacks. Numbers
  that don't count, since their group was given up or had enough responses without them, are made up for by the next group.
* The share `auditFraction` of later ones, chosen by a hash of the sample's id, runs to the hard limit too, and keeps its true grade.
* Every correct run counts one over the probability that it was allowed to take so long (Horvitz and Thompson 1952): an audit that took
  longer than its limit stands for all those that were killed.
* A kill tells nothing: whether it was wrong is known from audits alone.
* A group's grades count together or not at all: once its step is committed, or it is dropped for its equal rewards. When a group is given
  up its grades are cancelled where they are, and the slow ones with more likelihood than the quick ones; to count what was there by then
  would make correct runs seem quicker, and wrong kills rarer, than they are. Which groups are given up doesn't depend on how long their
  grades take.
* A correct run has a score above 0; of kind Sandbox the score of 1, whatever the credit: all test cases passed. A program that passes a
  part, often the small cases alone, says nothing of how long the whole takes: its times would narrow the limit until it cuts off correct
  programs, and those of the cases in which it hangs would widen it. So a kill that costs such a program a part of its credit isn't counted
  as wrong, and a problem of which no program has passed all cases has its domain's limit.

Limits change between rounds only: those of a round are frozen when it opens, and stay what they are if another driver goes on with it. All
of this is a fold of events, so that it belongs to a checkpoint as the ledger does.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from operator import itemgetter
from typing import Any

from longboat_crds.reward_kinds import RewardKind
from longboat_crds.rewards import RewardSpec
from longboat_runtime.reward.anchors import COVERED, DomainTimes, Prior, ProblemTimes
from longboat_runtime.rounds import events
from longboat_runtime.rounds.events import DropReason
from longboat_runtime.samples import GradeTime, PromptId, SampleId, TimeLimit

# This many responses to each problem run to the hard limit before one has a learned limit.
FREE_RESPONSES = 2
# The most problems that are remembered each by itself, the most recently used ones; and the most domains.
MOST_PROBLEMS, MOST_DOMAINS = 10_000, 256
# Shorter times count as this: they measure the grader rather than the response.
_LEAST_SECONDS = 1e-3
_UNKNOWN = ProblemTimes()


@dataclass(frozen=True, slots=True)
class Rule:
    """`rewards[].learnedTimeout` of one reward; `hard` is its `timeoutSeconds`. With `cases` only a score of 1 is that of a correct run."""

    factor: float
    least: float
    hard: float
    audits: float
    cases: bool = False

    @classmethod
    def from_rewards(cls, rewards: Iterable[RewardSpec]) -> dict[str, Rule]:
        """Makes the rules by name of the reward, for those that have one."""
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
        """Returns the limit in seconds for an anchor: not below `least`, and never above the hard limit."""
        return min(max(self.factor * anchor, self.least), self.hard)

    def audited(self, name: str, sample: SampleId) -> bool:
        """Whether the grade of this sample by the reward of this name is an audit."""
        drawn = hashlib.blake2b(f"audit/{name}/{sample}".encode(), digest_size=8).digest()
        return int.from_bytes(drawn, "big") < self.audits * 2**64


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits by one reward, as they were at one moment."""

    name: str
    rule: Rule
    problems: Mapping[int, ProblemTimes]
    priors: Mapping[str, Prior]

    def for_sample(self, sample: SampleId, domain: str) -> TimeLimit:
        """Returns the limit of a sample's grade; none for the first responses to a problem, and where nothing is known."""
        problem, prior = self.problems.get(sample.row, _UNKNOWN), self.priors.get(domain)
        if prior is None or sample.index < FREE_RESPONSES - problem.unlimited:
            return TimeLimit()
        return TimeLimit(self.rule.limit(prior.anchor(problem)), self.rule.audited(self.name, sample))

    def for_domain(self, domain: str) -> tuple[float, float] | None:
        """Returns the limits of a problem in the middle of the domain, and of one of which nothing is known, in seconds.

        None if nothing is known of the domain.
        """
        prior = self.priors.get(domain)
        if prior is None:
            return None
        middle = math.exp(min(prior.mean + COVERED * math.sqrt(prior.within), 100.0))
        return self.rule.limit(middle), self.rule.limit(prior.anchor(_UNKNOWN))

    def to_snapshot(self, now: Mapping[int, ProblemTimes]) -> dict[str, Any]:
        """Returns JSON values: of the problems, how they differ from what is known `now`."""
        return {
            "before": sorted([row, *problem] for row, problem in self.problems.items() if now.get(row) != problem),
            "later": sorted(now.keys() - self.problems.keys()),
            "priors": {domain: list(prior) for domain, prior in self.priors.items()},
        }

    @classmethod
    def from_snapshot(cls, reward_times: RewardTimes, snapshot: Mapping[str, Any]) -> Limits:
        """Reads what `to_snapshot` returned, given the times of the same snapshot.

        Raises KeyError, TypeError or ValueError if it isn't one.
        """
        problems = {**reward_times.problems, **{row: ProblemTimes(*problem) for row, *problem in snapshot["before"]}}
        for row in snapshot["later"]:
            del problems[row]
        return cls(
            reward_times.name,
            reward_times.rule,
            problems,
            {domain: Prior(*prior) for domain, prior in snapshot["priors"].items()},
        )


@dataclass(slots=True)
class Tally:
    """Counts what became of the grades that had a learned limit. Seconds are own seconds.

    `kill_room` is the time of all `kills` from the limit to the hard one. `wrong` counts the `audits` that were correct beyond the limit:
    those would have been killed wrongly. All audits that went on beyond it took `beyond` of the `room` up to the hard limit.
    """

    grades: int = 0
    kills: int = 0
    kill_room: float = 0.0
    audits: int = 0
    wrong: int = 0
    room: float = 0.0
    beyond: float = 0.0

    def add(self, time: GradeTime, hard: float, *, correct: bool) -> None:
        """Adds one grade that had a limit."""
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
        """Estimated seconds that kills have saved: `kill_room` times `beyond` over `room`, at most 1. 0 without audits beyond the limit."""
        return self.kill_room * min(self.beyond / self.room, 1.0) if self.room else 0.0


@dataclass(slots=True)
class RewardTimes:
    """Holds what has been learned for one reward. `slow` is the mean logarithm from which on a problem is among the slowest tenth."""

    name: str
    rule: Rule
    problems: dict[int, ProblemTimes] = field(default_factory=dict)
    domains: dict[str, DomainTimes] = field(default_factory=dict)
    slow: float = math.inf
    total: Tally = field(default_factory=Tally)
    slowest: Tally = field(default_factory=Tally)
    of_domains: dict[str, Tally] = field(default_factory=dict)

    def domain(self, name: str) -> str:
        """Returns the name under which a domain is tracked: `""` for any new one once MOST_DOMAINS have had a correct run."""
        return name if name in self.domains or len(self.domains) < MOST_DOMAINS else ""

    def add(self, row: int, domain: str, time: GradeTime, *, correct: bool) -> None:
        """Adds one grade."""
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
        unlimited = time.audit or time.limit is None
        after = before.after(logarithm, 1 / self.rule.audits if rare else 1.0, unlimited=unlimited)
        self.problems[row] = after
        if correct:
            self.domains[domain] = self.domains.get(domain, DomainTimes()).changed(before, after)
        if len(self.problems) > MOST_PROBLEMS:
            del self.problems[next(iter(self.problems))]

    def rank(self) -> None:
        """Settles which problems are the slowest from now on."""
        means = sorted(problem.mean for problem in self.problems.values() if problem.weight)
        self.slow = means[len(means) * 9 // 10] if means else math.inf

    def freeze(self) -> Limits:
        """Returns the limits as of now."""
        priors = {name: domain.prior for name, domain in self.domains.items()}
        return Limits(self.name, self.rule, dict(self.problems), priors)

    def to_snapshot(self) -> dict[str, Any]:
        """Returns JSON values; problems in the order in which they were last used."""
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
        """Reads what `to_snapshot` returned. Raises KeyError, TypeError or ValueError if it isn't one."""
        return cls(
            name,
            rule,
            {row: ProblemTimes(*problem) for row, *problem in snapshot["problems"]},
            {domain: DomainTimes(**times) for domain, times in snapshot["domains"].items()},
            math.inf if snapshot["slow"] is None else snapshot["slow"],
            Tally(**snapshot["total"]),
            Tally(**snapshot["slowest"]),
            {domain: Tally(**tally) for domain, tally in snapshot["of_domains"].items()},
        )


class LearnedTimeouts:
    """Learns timeouts for all rewards that have `learnedTimeout`, as a fold of events. `domain` gives the domain of a dataset row.

    `rewards` is empty where nothing is learned. A response that is graded again, since its data was lost, counts once.
    """

    def __init__(self, rewards: Sequence[RewardSpec], domain: Callable[[int], str]) -> None:
        self._domain = domain
        self.rewards = {name: RewardTimes(name, rule) for name, rule in Rule.from_rewards(rewards).items()}
        # Grades of groups that may still be given up: by reward what each took, and whether it was of a correct run.
        self._held: dict[PromptId, dict[SampleId, dict[str, tuple[GradeTime, bool]]]] = {}
        # The limits of rounds that aren't trained yet.
        self._rounds: dict[int, list[Limits]] = {}
        self._newest = self._freeze()

    def fold(self, entry: events.Entry) -> None:
        """Folds an entry of the log."""
        match entry.body:
            case events.RoundOpened(round=number):
                for times in self.rewards.values():
                    times.rank()
                self._rounds[number] = self._newest = self._freeze()
            case events.Graded() as graded:
                self._hold(graded)
            case events.StepCommitted(round=number, samples=samples):
                self._rounds.pop(number, None)
                for prompt in sorted({sample.prompt for sample in samples}):
                    self._learn(prompt)
            case events.GroupDropped(prompt=prompt, reason=DropReason.ZERO_VARIANCE):
                self._learn(prompt)
            case events.GroupDropped(prompt=prompt) | events.GroupDeferred(prompt=prompt):
                self._held.pop(prompt, None)

    def limits(self, sample: SampleId, round_: int) -> dict[str, TimeLimit]:
        """Returns the limits of a sample's grades in a round, by reward.

        Falls back to the newest ones if the round is already trained, as for a group that was left to the next one.
        """
        domain = self._domain(sample.row)
        frozen = self._rounds.get(round_, self._newest)
        return {limit.name: limit.for_sample(sample, self.rewards[limit.name].domain(domain)) for limit in frozen}

    def newest(self) -> Sequence[Limits]:
        """Returns the limits of the newest round, one for each reward; those as of its start from a driver that has opened none."""
        return self._newest

    def to_snapshot(self) -> dict[str, Any]:
        """Returns JSON values; empty where nothing is learned."""
        if not self.rewards:
            return {}
        samples = [(sample, times) for group in self._held.values() for sample, times in group.items()]
        return {
            "held": [
                [list(sample), {name: [asdict(time), correct] for name, (time, correct) in times.items()}]
                for sample, times in sorted(samples, key=itemgetter(0))
            ],
            "rounds": [
                [number, {limit.name: limit.to_snapshot(self.rewards[limit.name].problems) for limit in frozen}]
                for number, frozen in self._rounds.items()
            ],
            "rewards": {name: times.to_snapshot() for name, times in self.rewards.items()},
        }

    def restore(self, snapshot: Mapping[str, Any]) -> None:
        """Continues from a snapshot, for those rewards that it has. Raises KeyError, TypeError or ValueError if it isn't one."""
        if not snapshot:
            return
        for name, reward_times in self.rewards.items():
            if name in snapshot["rewards"]:
                self.rewards[name] = RewardTimes.from_snapshot(name, reward_times.rule, snapshot["rewards"][name])
        self._held = {}
        for sample, times in snapshot["held"]:
            grades = {name: (GradeTime(**time), correct) for name, (time, correct) in times.items()}
            self._held.setdefault(SampleId(*sample).prompt, {})[SampleId(*sample)] = grades
        self._rounds = {
            number: [
                Limits.from_snapshot(reward_times, frozen[name])
                for name, reward_times in self.rewards.items()
                if name in frozen
            ]
            for number, frozen in snapshot["rounds"]
        }
        self._newest = self._freeze()

    def _freeze(self) -> list[Limits]:
        return [times.freeze() for times in self.rewards.values()]

    def _hold(self, graded: events.Graded) -> None:
        # A grader error has no part: it says nothing about the response.
        times = {
            name: (time, self.rewards[name].rule.correct(graded.parts[name]))
            for name, time in graded.times.items()
            if name in self.rewards and name in graded.parts
        }
        if times:
            self._held.setdefault(graded.sample.prompt, {})[graded.sample] = times

    def _learn(self, prompt: PromptId) -> None:
        """Learns the grades of this group all at once, in the order of samples, so that the order of grading doesn't matter."""
        for _, times in sorted(self._held.pop(prompt, {}).items()):
            for name, (time, correct) in times.items():
                self.rewards[name].add(prompt.row, self._domain(prompt.row), time, correct=correct)
