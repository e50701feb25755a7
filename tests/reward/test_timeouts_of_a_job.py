"""Learned timeouts on the benchmark's mix: what they save, what they kill, and what is known of both."""

import math
from dataclasses import dataclass
from functools import cache

import numpy as np
import pytest

from bench.rewards.mix import Fate
from bench.rewards.simulated import SimulatedGrading
from longboat_runtime.metrics.timeouts import interval, learned_limits, timeout_metrics
from longboat_runtime.rounds import events
from longboat_runtime.rounds.events import DeferReason
from longboat_runtime.samples import PromptId, SampleId
from tests.reward.test_timeouts import RULE, committed, limit, opened, reward, sample
from tests.support.log import logged

# The mechanism has tests of its own; these repeat what the benchmark shows.
pytestmark = pytest.mark.extended


@pytest.fixture(scope="module")
def runs() -> list[SimulatedGrading]:
    return [SimulatedGrading(seed).run() for seed in range(10)]


def test_learned_limits_save_time_and_kill_few_correct_responses(runs: list[SimulatedGrading]) -> None:
    """Kills are counted as a share of correct responses, which is about half of all grades."""
    assert sum(run.hard.cpu for run in runs) >= 1.5 * sum(run.learned.cpu for run in runs)
    assert sum(run.hard.occupied for run in runs) >= 1.5 * sum(run.learned.occupied for run in runs)
    for run in runs:
        assert run.counts[""].of_correct < 0.01
        assert run.counts["slowest"].of_correct < 0.05


def test_the_interval_of_wrong_kills_covers_the_truth_as_often_as_it_says_and_is_narrow(
    runs: list[SimulatedGrading],
) -> None:
    """The truth is what the limits of the run would have killed. Its audits are drawn again, as for other samples, to count often enough."""
    draw, of = np.random.default_rng(0), cache(interval)
    covered, drawn = 0, 400
    for run in runs:
        counts, tally = run.counts[""], run.timeouts.rewards["tests"].total
        assert tally.grades == counts.limited
        assert interval(tally.wrong, tally.audits)[1] < 0.03
        hits = draw.binomial(counts.killed, RULE.audits, drawn)
        others = draw.binomial(counts.limited - counts.killed, RULE.audits, drawn)
        for wrong, right in zip(map(int, hits), map(int, others), strict=True):
            low, high = of(wrong, wrong + right)
            covered += low <= counts.wrong_kill_rate <= high
    assert 0.93 <= covered / (drawn * len(runs)) <= 0.98


@dataclass
class Race(SimulatedGrading):
    """A round keeps a quarter of its groups. The others are left out while they are graded: each of their grades has up to a second.

    The `others` are what is learned from those: nothing, what was graded by then, or all grades, as if none were cancelled.
    """

    others: str = "nothing"
    limited: int = 0
    wrong: int = 0

    def round(self, number: int, epoch: int, rows: list[int]) -> None:
        self.timeouts.fold(logged(opened(number)))
        samples = [SampleId(epoch, row, number, index) for row in rows for index in range(8)]
        responses = self.mix.responses([of.row for of in samples], number)
        left = np.random.default_rng((self.seed, 5, number)).random(len(samples))
        out = {PromptId(epoch, row) for row in rows if row not in rows[::4]}
        for of, response, seconds in zip(samples, responses, left, strict=True):
            given_limit = limit(self.timeouts, of, number)
            if given_limit.seconds is not None:
                self.limited += 1
                self.wrong += response.fate is Fate.CORRECT and response.seconds > given_limit.seconds
            found = self.grade(of, response, given_limit)
            if of.prompt not in out or self.others == "all" or found.seconds < seconds:
                self.timeouts.fold(logged(found))
        if self.others == "nothing":
            for prompt in out:
                self.timeouts.fold(logged(events.GroupDeferred(prompt, number, DeferReason.TOO_LONG)))
            samples = [of for of in samples if of.prompt not in out]
        self.timeouts.fold(logged(committed(samples, number)))

    @property
    def looseness(self) -> float:
        """The logarithm of limits, on average over problems."""
        limits = [limit(self.timeouts, sample(row, 7), 0).seconds for row in range(self.problems)]
        return float(np.mean(np.log(np.array(limits, float))))


def test_groups_that_are_given_up_while_they_are_graded_make_nothing_seem_quicker() -> None:
    """To learn from what was graded of them by then would make limits tighter, and wrong kills look rarer than they are."""
    spec = reward(minSeconds=0.01, factor=1.0, auditFraction=0.5)
    runs = {
        others: [Race(seed, 8000, 100, spec, contended=False, others=others).run() for seed in range(4)]
        for others in ("all", "nothing", "graded")
    }
    looseness = {others: float(np.mean([run.looseness for run in of])) for others, of in runs.items()}
    assert looseness["nothing"] > looseness["all"], "less is known, so limits are wider"
    assert looseness["graded"] < looseness["all"] - 0.06

    def covered(others: str) -> bool:
        """Whether the interval holds the true rate of wrong kills, over all runs."""
        tallies = [run.timeouts.rewards["tests"].total for run in runs[others]]
        low, high = interval(sum(of.wrong for of in tallies), sum(of.audits for of in tallies))
        truth = sum(run.wrong for run in runs[others]) / sum(run.limited for run in runs[others])
        return low <= truth <= high

    assert covered("all")
    assert covered("nothing")
    assert not covered("graded")


def test_a_busy_node_changes_no_limit() -> None:
    """Own seconds are the same, so what is learned is; only responses that the hard limit ends differ."""
    busy, idle = (SimulatedGrading(7, 4000, contended=contended).run() for contended in (True, False))
    for row in range(0, 500, 7):
        domain = busy.mix.problems[row].domain.name
        found, expected = (run.timeouts.limits(SampleId(0, row, 1000, 7), 0)["tests"].seconds for run in (busy, idle))
        assert found == pytest.approx(expected, rel=0.05), domain


def test_what_is_saved_is_estimated_from_audits(runs: list[SimulatedGrading]) -> None:
    run = runs[0]
    tally = run.timeouts.rewards["tests"].total
    assert tally.kills == pytest.approx(0.068 * tally.grades, rel=0.3)
    assert 0.5 < tally.saved / (run.hard.occupied - run.learned.occupied) < 1.5


def test_metrics_and_status_tell_what_was_learned(runs: list[SimulatedGrading]) -> None:
    timeouts = runs[0].timeouts
    metrics = timeout_metrics(timeouts)
    prefix = "reward/timeouts/tests/"
    assert all(name.startswith(prefix) and math.isfinite(value) for name, value in metrics.items())
    for part in ("", "slowest/", "domains/stdin/"):
        low, rate, high = (metrics[f"{prefix}{part}wrong_kill_rate{end}"] for end in ("_low", "", "_high"))
        assert low <= rate <= high
    lines = learned_limits(timeouts)["tests"]
    assert {line.domain for line in lines} == {"functions", "stdin", "simulation"}
    functions = next(line for line in lines if line.domain == "functions")
    assert functions.limit.startswith("2 s in the middle")
