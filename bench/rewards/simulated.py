"""A job's grading on the benchmark's mix, round by round, with learned limits and with the hard one: what each takes, and what is killed."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Self

import numpy as np

from bench.rewards.mix import HARD_LIMIT, Contention, Fate, Mix, Response
from longboat_crds.rewards import RewardSpec
from longboat_runtime.reward.timeouts import LearnedTimeouts
from longboat_runtime.rounds import events
from longboat_runtime.rounds.round_kind import RoundKind
from longboat_runtime.samples import GradeKind, GradeTime, SampleId, TimeLimit
from tests.support.log import logged

PROMPTS, GROUP = 50, 8
REWARD = RewardSpec.model_validate(
    {"name": "tests", "function": "m:f", "timeoutSeconds": HARD_LIMIT, "learnedTimeout": {}}
)
# Seconds after which a limit that is reached is noticed.
NOTICED = 0.1


@dataclass
class Counts:
    """Counts grades with a learned limit, and those of them that are correct with the hard one.

    `killed` is how many of the latter the learned limit kills or would have killed.
    """

    limited: int = 0
    correct: int = 0
    killed: int = 0

    @property
    def wrong_kill_rate(self) -> float:
        return self.killed / max(self.limited, 1)

    @property
    def of_correct(self) -> float:
        return self.killed / max(self.correct, 1)


@dataclass
class Costs:
    cpu: float = 0.0
    occupied: float = 0.0


@dataclass
class SimulatedGrading:
    """`grades` of this many problems; `hard` and `learned` are what they cost, `counts` by "", domain and "slowest" (by the mix)."""

    seed: int
    grades: int = 20_000
    problems: int = 500
    reward: RewardSpec = REWARD
    contended: bool = True
    hard: Costs = field(default_factory=Costs)
    learned: Costs = field(default_factory=Costs)
    counts: dict[str, Counts] = field(default_factory=lambda: defaultdict(Counts))

    def __post_init__(self) -> None:
        self.mix = Mix(self.seed, self.problems)
        by_seconds = sorted(self.mix.problems, key=lambda problem: problem.seconds)
        self.slowest = {problem.row for problem in by_seconds[-(self.problems // 10) :]}
        self.timeouts = LearnedTimeouts([self.reward], lambda row: self.mix.problems[row].domain.name)
        self._contention = Contention(self.seed, 3600.0)
        self._clock = np.random.default_rng((self.seed, 3))

    def run(self) -> Self:
        order = np.random.default_rng((self.seed, 4))
        rows: list[int] = []
        self.timeouts.fold(logged(events.Started(0)))
        for number in range(1, self.grades // (PROMPTS * GROUP) + 1):
            if len(rows) < PROMPTS:
                epoch, rows = number, [*rows, *map(int, order.permutation(self.problems))]
            self.round(number, epoch, rows[:PROMPTS])
            rows = rows[PROMPTS:]
        return self

    def round(self, number: int, epoch: int, rows: list[int]) -> None:
        """Grades a round, whose grades become known in random order."""
        self.timeouts.fold(logged(events.RoundOpened(number, RoundKind.SHORT, number - 1)))
        samples = [SampleId(epoch, row, number, index) for row in rows for index in range(GROUP)]
        responses = self.mix.responses([sample.row for sample in samples], number)
        graded = [
            self.grade(sample, response, self.timeouts.limits(sample, number)[self.reward.name])
            for sample, response in zip(samples, responses, strict=True)
        ]
        for place in self._clock.permutation(len(graded)):
            self.timeouts.fold(logged(graded[place]))
        self.timeouts.fold(logged(events.StepCommitted(number, number, number, tuple(samples))))

    def grade(self, sample: SampleId, response: Response, limit: TimeLimit) -> events.Graded:
        slowdown = self._contention.at(float(self._clock.uniform(0.0, 3600.0))) if self.contended else 1.0
        hard = _taken(response, slowdown, None)
        taken = _taken(response, slowdown, limit.in_force)
        self.hard.cpu += hard.cpu
        self.hard.occupied += hard.wall
        self.learned.cpu += taken.cpu
        self.learned.occupied += taken.wall
        correct = response.fate is Fate.CORRECT and not hard.killed
        if limit.seconds is not None:
            self._count(response.row, correct, correct and _taken(response, slowdown, limit.seconds).killed)
        solved = correct and not taken.killed
        score = None if taken.killed else float(solved)
        kind = GradeKind.TIMEOUT if score is None else GradeKind.SCORED
        by_limit = taken.killed and taken.wall < HARD_LIMIT
        time = GradeTime(taken.own, taken.cpu, limit.seconds, limit.audit, by_limit)
        return events.Graded(sample, kind, score or 0.0, taken.wall, "", {"tests": score}, {"tests": time})

    def _count(self, row: int, correct: bool, wrongly_killed: bool) -> None:
        for name in ("", self.mix.problems[row].domain.name, *(["slowest"] if row in self.slowest else [])):
            counts = self.counts[name]
            counts.limited += 1
            counts.correct += correct
            counts.killed += wrongly_killed


@dataclass(frozen=True)
class _Taken:
    own: float
    cpu: float
    wall: float
    killed: bool


def _taken(response: Response, slowdown: float, limit: float | None) -> _Taken:
    """Returns what a response takes as graders see it: `limit`, if any, counts own seconds, the hard limit those on the wall."""
    computes = response.fate is not Fate.ASLEEP
    share = response.cpu_seconds / response.seconds if math.isfinite(response.seconds) else float(computes)
    pace = share * slowdown + 1 - share  # of the wall's seconds, to one of its own
    ends = [(response.seconds, False), (HARD_LIMIT / pace, True)]
    if limit is not None:
        ends.append((limit + NOTICED / pace, True))
    own, killed = min(ends)
    return _Taken(own, own * share, own * pace, killed)
