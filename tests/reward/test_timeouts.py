"""Learned timeouts: the rule, its state, and what it does to a job's grading on the benchmark's mix."""

import json
import math
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.rewards.mix import HARD_LIMIT
from bench.rewards.simulated import REWARD, SimulatedGrading
from longboat_crds.rewards import RewardSpec
from longboat_runtime.metrics.timeouts import interval, learned_limits, timeout_metrics
from longboat_runtime.reward.timeouts import (
    FREE_RESPONSES,
    MOST_DOMAINS,
    MOST_PROBLEMS,
    DomainTimes,
    LearnedTimeouts,
    ProblemTimes,
    RewardTimes,
    Rule,
)
from longboat_runtime.rounds import events
from longboat_runtime.rounds.events import DropReason, RoundKind
from longboat_runtime.samples import GradeKind, GradeTime, PromptId, SampleId, TimeLimit

RULE = Rule.of([REWARD])["tests"]


def reward(name: str = "tests", **learned: Any) -> RewardSpec:
    fields = {"name": name, "function": "m:f", "timeoutSeconds": HARD_LIMIT, "learnedTimeout": learned}
    return RewardSpec.model_validate(fields)


def sample(row: int = 0, index: int = 0, attempt: int = 0) -> SampleId:
    return SampleId(0, row, attempt, index)


def graded(
    of: SampleId, seconds: float, limit: TimeLimit | None = None, *, score: float | None = 1.0, killed: bool = False
) -> events.Graded:
    limit = limit or TimeLimit()
    time = GradeTime(seconds, seconds, limit.seconds, limit.audit, killed)
    kind = GradeKind.SCORED if score is not None else GradeKind.TIMEOUT
    return events.Graded(of, kind, score or 0.0, seconds, "", {"tests": score}, {"tests": time})


def opened(number: int) -> events.RoundOpened:
    return events.RoundOpened(number, RoundKind.SHORT, 0)


def taught(rows: Sequence[int], seconds: float = 1.0, runs: int = 8) -> LearnedTimeouts:
    """With `runs` correct runs of each row, all about as long, and a round 1 that is open."""
    timeouts = LearnedTimeouts([REWARD], lambda row: "")
    for row in rows:
        for index in range(runs):
            timeouts.fold(graded(sample(row, index), seconds * (1.0 + 0.01 * index)))
    timeouts.fold(opened(1))
    return timeouts


def limit(timeouts: LearnedTimeouts, of: SampleId, round_: int = 1) -> TimeLimit:
    return timeouts.limits(of, round_)["tests"]


# --- The rule -------------------------------------------------------------------------------------------------------


def test_nothing_is_learned_unless_it_is_asked_for() -> None:
    timeouts = LearnedTimeouts([RewardSpec(name="tests", function="m:f")], lambda row: "")
    timeouts.fold(opened(1))
    timeouts.fold(graded(sample(), 1.0))
    assert timeouts.limits(sample(), 1) == {}
    assert timeouts.to_snapshot() == {}
    assert timeout_metrics(timeouts) == {}
    assert learned_limits(timeouts) == {}


def test_the_first_responses_to_a_problem_run_to_the_hard_limit_and_those_after_them_do_not() -> None:
    timeouts = taught(range(20))
    limited = [limit(timeouts, sample(99, index)).seconds is not None for index in range(8)]
    assert limited == [False] * FREE_RESPONSES + [True] * (8 - FREE_RESPONSES)
    assert all(limit(timeouts, sample(3, index, attempt=1)).seconds is not None for index in range(8))


def test_what_nothing_is_known_of_has_the_hard_limit() -> None:
    timeouts = LearnedTimeouts([REWARD], lambda row: "even" if row % 2 == 0 else "odd")
    for row in range(0, 40, 2):
        timeouts.fold(graded(sample(row), 1.0))
    timeouts.fold(opened(1))
    assert limit(timeouts, sample(100, 7)).seconds is not None
    assert limit(timeouts, sample(101, 7)) == TimeLimit()


def test_wrong_responses_say_nothing_about_how_long_correct_ones_take() -> None:
    timeouts = taught(range(20))
    for index in range(100):
        timeouts.fold(graded(sample(3, index, attempt=1), 20.0, score=0.0))
        timeouts.fold(graded(sample(3, index, attempt=2), 2.1, TimeLimit(2.0), score=None, killed=True))
    before = limit(timeouts, sample(3, 7, attempt=3)).seconds
    timeouts.fold(opened(2))
    assert limit(timeouts, sample(3, 7, attempt=3), 2).seconds == before


def cased(credit: str) -> RewardSpec:
    fields = {"name": "tests", "kind": "Sandbox", "timeoutSeconds": HARD_LIMIT, "sandbox": {"credit": credit}}
    return RewardSpec.model_validate({**fields, "learnedTimeout": {}})


@given(
    st.sampled_from(["Fraction", "AllOrNothing"]),
    st.lists(
        st.tuples(st.integers(0, 19), st.floats(0.0, 0.999), st.floats(0.0, HARD_LIMIT), st.booleans()), max_size=40
    ),
)
def test_programs_that_pass_a_part_of_the_cases_move_no_limit(
    credit: str, partial: list[tuple[int, float, float, bool]]
) -> None:
    """Neither those that hang in the others, nor those that are quick because they solve the small cases alone, nor those that are cut off."""
    timeouts = LearnedTimeouts([cased(credit)], lambda row: "")
    timeouts.fold(opened(1))
    assert limit(timeouts, sample(3, 7)) == TimeLimit()
    for number, (row, score, seconds, cut_off) in enumerate(partial):
        timeouts.fold(graded(sample(row, 0, number), seconds, TimeLimit(2.0), score=score, killed=cut_off))
    timeouts.fold(opened(2))
    assert limit(timeouts, sample(3, 7), 2) == TimeLimit()
    for row in range(20):
        timeouts.fold(graded(sample(row, 1, 1000), 1.0))
    timeouts.fold(opened(3))
    bare = LearnedTimeouts([cased(credit)], lambda row: "")
    for row in range(20):
        bare.fold(graded(sample(row, 1, 1000), 1.0))
    bare.fold(opened(3))
    assert [limit(timeouts, sample(row, 7, 2000), 3) for row in range(21)] == [
        limit(bare, sample(row, 7, 2000), 3) for row in range(21)
    ]


def test_limits_change_between_rounds_only() -> None:
    timeouts = taught(range(20))
    before = limit(timeouts, sample(3, 7, attempt=1))
    for index in range(8):
        timeouts.fold(graded(sample(3, index, attempt=1), 9.0))
    timeouts.fold(opened(2))
    assert limit(timeouts, sample(3, 7, attempt=1)) == before
    after = limit(timeouts, sample(3, 7, attempt=1), 2)
    assert after.seconds is not None
    assert before.seconds is not None
    assert after.seconds > before.seconds
    timeouts.fold(events.StepCommitted(1, 1, 1, ()))
    assert limit(timeouts, sample(3, 7, attempt=1)) == after


def test_one_audit_that_was_correct_beyond_its_limit_stands_for_all_that_were_killed() -> None:
    """A slower way that the model has learned is let through, though a hundred runs were fast."""
    timeouts = taught(range(20), runs=100)
    narrow = limit(timeouts, sample(3, 7, attempt=1)).seconds
    assert narrow is not None
    assert narrow < 6.0
    timeouts.fold(graded(sample(3, 0, attempt=1), 6.0, TimeLimit(narrow, audit=True)))
    timeouts.fold(opened(2))
    wide = limit(timeouts, sample(3, 7, attempt=1), 2).seconds
    assert wide is not None
    assert wide > 6.0


def test_what_is_graded_again_counts_once() -> None:
    timeouts = taught(range(20))
    once = json.dumps(timeouts.to_snapshot())
    timeouts.fold(graded(sample(3, 0), 1.0))
    assert json.dumps(timeouts.to_snapshot()) == once
    timeouts.fold(events.GroupDropped(PromptId(0, 3), 0, DropReason.ZERO_VARIANCE))
    timeouts.fold(graded(sample(3, 0), 1.0))
    assert json.dumps(timeouts.to_snapshot()) != once


@given(
    st.lists(st.tuples(st.integers(0, 30), st.floats(0.0, 40.0), st.booleans(), st.booleans()), max_size=60),
    st.floats(1.0, 10.0),
    st.floats(0.01, HARD_LIMIT),
)
def test_limits_are_within_their_bounds_and_the_same_after_a_restart(
    grades: list[tuple[int, float, bool, bool]], factor: float, least: float
) -> None:
    spec = reward(factor=factor, minSeconds=least)

    def fold(into: LearnedTimeouts, part: Sequence[tuple[int, tuple[int, float, bool, bool]]]) -> None:
        for number, (row, seconds, correct, audit) in part:
            into.fold(opened(number))
            of = sample(row, number)
            given_limit = TimeLimit(limit(into, of, number).seconds, audit)
            into.fold(graded(of, seconds, given_limit, score=float(correct)))
        into.fold(opened(1000))

    numbered = list(enumerate(grades, start=1))
    whole, half = (LearnedTimeouts([spec], lambda row: str(row % 3)) for _ in range(2))
    fold(whole, numbered)
    fold(half, numbered[: len(numbered) // 2])
    resumed = LearnedTimeouts([spec], lambda row: str(row % 3))
    resumed.restore(json.loads(json.dumps(half.to_snapshot())))
    fold(resumed, numbered[len(numbered) // 2 :])
    assert resumed.to_snapshot() == whole.to_snapshot()
    for row in range(31):
        found = limit(whole, sample(row, 2000), 1000)
        assert found == limit(resumed, sample(row, 2000), 1000)
        assert found.seconds is None or least <= found.seconds <= HARD_LIMIT


@given(st.lists(st.tuples(st.integers(0, 6), st.floats(-3.0, 3.0), st.sampled_from([1.0, 50.0])), max_size=80))
def test_what_is_summed_up_of_a_domain_is_what_its_problems_say(runs: list[tuple[int, float, float]]) -> None:
    problems: dict[int, ProblemTimes] = {}
    domain = DomainTimes()
    for row, logarithm, weight in runs:
        before = problems.get(row, ProblemTimes())
        problems[row] = before.after(logarithm, weight)
        domain = domain.changed(before, problems[row])
    for row, problem in problems.items():
        values = np.array([value for of, value, _ in runs if of == row])
        weights = np.array([weight for of, _, weight in runs if of == row])
        mean = np.average(values, weights=weights)
        assert problem.mean == pytest.approx(mean, abs=1e-9)
        assert problem.deviation == pytest.approx(weights @ (values - mean) ** 2, abs=1e-6)
    assert domain.problems == len(problems)
    assert domain.means == pytest.approx(sum(problem.mean for problem in problems.values()), abs=1e-6)
    assert domain.deviation == pytest.approx(sum(problem.deviation for problem in problems.values()), abs=1e-5)


@given(st.integers(0, 2**40), st.integers(0, 2**20))
def test_who_is_audited_follows_from_the_sample_alone(row: int, index: int) -> None:
    of = SampleId(1, row, 0, index)
    assert RULE.audited("tests", of) == Rule.of([REWARD])["tests"].audited("tests", of)


def test_the_share_that_is_asked_for_is_audited() -> None:
    audited = sum(RULE.audited("tests", SampleId(0, row, 0, index)) for row in range(5000) for index in range(8))
    assert audited == pytest.approx(40_000 * RULE.audits, rel=0.15)  # four standard deviations


def test_the_state_is_bounded_and_what_is_forgotten_is_the_domains() -> None:
    of = RewardTimes("tests", RULE)
    for row in range(MOST_PROBLEMS + 500):
        of.add(row, f"domain {row}", GradeTime(1.0, 1.0), correct=True)
    assert len(of.problems) == MOST_PROBLEMS
    assert 0 not in of.problems
    assert len(of.domains) <= MOST_DOMAINS + 1
    assert of.domain("domain 0") == "domain 0"
    assert of.domains[""].problems == MOST_PROBLEMS + 500 - MOST_DOMAINS
    assert of.freeze().of(sample(0, 7), "domain 0").seconds is not None
    assert len(json.dumps(of.to_snapshot())) < 2_000_000


# --- The interval ---------------------------------------------------------------------------------------------------


def test_the_interval_is_the_published_one() -> None:
    """Clopper and Pearson's of 0 of 10 would be 0.308; with mid-P it is 1 - 0.05^(1/10)."""
    assert interval(0, 10) == pytest.approx((0.0, 1 - 0.05**0.1))
    assert interval(10, 10) == pytest.approx((0.05**0.1, 1.0))
    assert interval(0, 0) == (0.0, 1.0)
    low, high = interval(5, 100)
    assert low < 0.05 < high


def test_the_interval_is_what_sums_of_chances_give() -> None:
    for hits, trials in ((1, 20), (3, 370), (180, 400), (2000, 100_000)):
        low, high = interval(hits, trials)
        for share, tail in ((low, 0.975), (high, 0.025)):
            chances = [
                math.exp(
                    math.lgamma(trials + 1)
                    - math.lgamma(number + 1)
                    - math.lgamma(trials - number + 1)
                    + number * math.log(share)
                    + (trials - number) * math.log1p(-share)
                )
                for number in range(hits + 1)
            ]
            assert math.fsum(chances) - chances[-1] / 2 == pytest.approx(tail, rel=1e-6)


@given(st.integers(1, 400), st.data())
def test_the_interval_holds_the_share_and_shrinks(trials: int, data: st.DataObject) -> None:
    hits = data.draw(st.integers(0, trials))
    low, high = interval(hits, trials)
    assert 0.0 <= low <= hits / trials <= high <= 1.0
    more_low, more_high = interval(4 * hits, 4 * trials)
    assert more_high - more_low < high - low


# --- A job's grading ------------------------------------------------------------------------------------------------


@cache
def runs() -> list[SimulatedGrading]:
    return [SimulatedGrading(seed).run() for seed in range(10)]


def test_learned_limits_save_time_and_kill_few_correct_responses() -> None:
    """Kills are counted as a share of correct responses, which is about half of all grades."""
    assert sum(run.hard.cpu for run in runs()) >= 1.5 * sum(run.learned.cpu for run in runs())
    assert sum(run.hard.occupied for run in runs()) >= 1.5 * sum(run.learned.occupied for run in runs())
    for run in runs():
        assert run.counts[""].of_correct < 0.01
        assert run.counts["slowest"].of_correct < 0.05


def test_the_interval_of_wrong_kills_covers_the_truth_as_often_as_it_says_and_is_narrow() -> None:
    """The truth is what the limits of the run would have killed. Its audits are drawn again, as for other samples, to count often enough."""
    draw, of = np.random.default_rng(0), cache(interval)
    covered, drawn = 0, 400
    for run in runs():
        counts, tally = run.counts[""], run.timeouts.rewards["tests"].total
        assert tally.grades == counts.limited
        assert interval(tally.wrong, tally.audits)[1] < 0.03
        hits = draw.binomial(counts.limited_wrong, RULE.audits, drawn)
        others = draw.binomial(counts.limited - counts.limited_wrong, RULE.audits, drawn)
        for wrong, right in zip(map(int, hits), map(int, others), strict=True):
            low, high = of(wrong, wrong + right)
            covered += low <= counts.wrong_kill_rate <= high
    assert 0.93 <= covered / (drawn * len(runs())) <= 0.98


def test_a_busy_node_changes_no_limit() -> None:
    """Own seconds are the same, so what is learned is; only responses that the hard limit ends differ."""
    busy, idle = (SimulatedGrading(7, 4000, contended=contended).run() for contended in (True, False))
    for row in range(0, 500, 7):
        domain = busy.mix.problems[row].domain.name
        found, expected = (run.timeouts.limits(SampleId(0, row, 1000, 7), 0)["tests"].seconds for run in (busy, idle))
        assert found == pytest.approx(expected, rel=0.05), domain


def test_what_is_saved_is_estimated_from_audits() -> None:
    run = runs()[0]
    tally = run.timeouts.rewards["tests"].total
    assert tally.kills == pytest.approx(0.068 * tally.grades, rel=0.3)
    assert 0.5 < tally.saved / (run.hard.occupied - run.learned.occupied) < 1.5


def test_metrics_and_status_tell_what_was_learned() -> None:
    timeouts = runs()[0].timeouts
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
