"""Learned timeouts: the rule and its state."""

import json
import math
import random
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.rewards.mix import HARD_LIMIT
from bench.rewards.simulated import REWARD
from longboat_crds.rewards import RewardSpec
from longboat_runtime.metrics.timeouts import interval, learned_limits, timeout_metrics
from longboat_runtime.reward.anchors import DomainTimes, ProblemTimes
from longboat_runtime.reward.timeouts import (
    FREE_RESPONSES,
    MOST_DOMAINS,
    MOST_PROBLEMS,
    LearnedTimeouts,
    RewardTimes,
    Rule,
)
from longboat_runtime.rounds import events
from longboat_runtime.rounds.events import DeferReason, DropReason
from longboat_runtime.rounds.round_kind import RoundKind
from longboat_runtime.samples import GradeKind, GradeTime, PromptId, SampleId, TimeLimit
from tests.support.log import logged

RULE = Rule.from_rewards([REWARD])["tests"]


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


def committed(samples: Iterable[SampleId], round_: int = 0) -> events.StepCommitted:
    return events.StepCommitted(round_, round_, round_, tuple(sorted(samples)))


def learn(timeouts: LearnedTimeouts, *grades: events.Graded) -> None:
    """From the grades of groups that were trained."""
    for grade in grades:
        timeouts.fold(logged(grade))
    timeouts.fold(logged(committed(grade.sample for grade in grades)))


def taught(rows: Sequence[int], seconds: float = 1.0, runs: int = 8) -> LearnedTimeouts:
    """With `runs` correct runs of each row, all about as long, and a round 1 that is open."""
    timeouts = LearnedTimeouts([REWARD], lambda row: "")
    for row in rows:
        learn(timeouts, *(graded(sample(row, index), seconds * (1.0 + 0.01 * index)) for index in range(runs)))
    timeouts.fold(logged(opened(1)))
    return timeouts


def limit(timeouts: LearnedTimeouts, of: SampleId, round_: int = 1) -> TimeLimit:
    return timeouts.limits(of, round_)["tests"]


# --- The rule -------------------------------------------------------------------------------------------------------


def test_nothing_is_learned_unless_it_is_asked_for() -> None:
    timeouts = LearnedTimeouts([RewardSpec(name="tests", function="m:f")], lambda row: "")
    timeouts.fold(logged(opened(1)))
    learn(timeouts, graded(sample(), 1.0))
    assert timeouts.limits(sample(), 1) == {}
    assert timeouts.to_snapshot() == {}
    assert timeout_metrics(timeouts) == {}
    assert learned_limits(timeouts) == {}


def test_the_first_responses_to_a_problem_run_to_the_hard_limit_and_those_after_them_do_not() -> None:
    timeouts = taught(range(20))
    limited = [limit(timeouts, sample(99, index)).seconds is not None for index in range(8)]
    assert limited == [False] * FREE_RESPONSES + [True] * (8 - FREE_RESPONSES)
    assert all(limit(timeouts, sample(3, index, attempt=1)).seconds is not None for index in range(8))


def limited(timeouts: LearnedTimeouts, row: int, attempt: int, round_: int, samples: int = 8) -> list[bool]:
    return [limit(timeouts, sample(row, index, attempt), round_).seconds is not None for index in range(samples)]


@pytest.mark.parametrize("kept", [False, True])
def test_a_problem_of_which_none_ran_to_the_hard_limit_still_has_its_first_responses(kept: bool) -> None:
    """Its group was left to a later round when all but the first two had been graded, or had enough responses without these."""
    timeouts = taught(range(20))
    grades = [graded(sample(99, index), 1.0, limit(timeouts, sample(99, index))) for index in range(2, 10)]
    for grade in grades:
        timeouts.fold(logged(grade))
    left = committed([grade.sample for grade in grades])
    timeouts.fold(logged(left if kept else events.GroupDeferred(PromptId(0, 99), 0, DeferReason.TOO_LONG)))
    timeouts.fold(logged(opened(2)))
    assert limited(timeouts, 99, 1, 2) == [False, False] + [True] * 6
    learn(timeouts, *(graded(sample(99, index, 1), 1.0, limit(timeouts, sample(99, index, 1), 2)) for index in (0, 2)))
    timeouts.fold(logged(opened(3)))
    assert limited(timeouts, 99, 2, 3) == [False] + [True] * 7
    learn(timeouts, graded(sample(99, 0, 2), 1.0, limit(timeouts, sample(99, 0, 2), 3)))
    timeouts.fold(logged(opened(4)))
    assert limited(timeouts, 99, 3, 4) == [True] * 8


def test_what_nothing_is_known_of_has_the_hard_limit() -> None:
    timeouts = LearnedTimeouts([REWARD], lambda row: "even" if row % 2 == 0 else "odd")
    learn(timeouts, *(graded(sample(row), 1.0) for row in range(0, 40, 2)))
    timeouts.fold(logged(opened(1)))
    assert limit(timeouts, sample(100, 7)).seconds is not None
    assert limit(timeouts, sample(101, 7)) == TimeLimit()


def test_wrong_responses_say_nothing_about_how_long_correct_ones_take() -> None:
    timeouts = taught(range(20))
    learn(timeouts, *(graded(sample(3, index, attempt=1), 20.0, score=0.0) for index in range(100)))
    killed = [graded(sample(3, i, attempt=2), 2.1, TimeLimit(2.0), score=None, killed=True) for i in range(100)]
    learn(timeouts, *killed)
    before = limit(timeouts, sample(3, 7, attempt=3)).seconds
    timeouts.fold(logged(opened(2)))
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
    timeouts.fold(logged(opened(1)))
    assert limit(timeouts, sample(3, 7)) == TimeLimit()
    for number, (row, score, seconds, cut_off) in enumerate(partial):
        learn(timeouts, graded(sample(row, 0, number), seconds, TimeLimit(2.0), score=score, killed=cut_off))
    timeouts.fold(logged(opened(2)))
    assert limit(timeouts, sample(3, 7), 2) == TimeLimit()
    whole = [graded(sample(row, 1, 1000), 1.0) for row in range(20)]
    learn(timeouts, *whole)
    timeouts.fold(logged(opened(3)))
    bare = LearnedTimeouts([cased(credit)], lambda row: "")
    learn(bare, *whole)
    bare.fold(logged(opened(3)))
    assert [limit(timeouts, sample(row, 7, 2000), 3) for row in range(21)] == [
        limit(bare, sample(row, 7, 2000), 3) for row in range(21)
    ]


def test_limits_change_between_rounds_only() -> None:
    timeouts = taught(range(20))
    before = limit(timeouts, sample(3, 7, attempt=1))
    learn(timeouts, *(graded(sample(3, index, attempt=1), 9.0) for index in range(8)))
    timeouts.fold(logged(opened(2)))
    assert limit(timeouts, sample(3, 7, attempt=1)) == before
    after = limit(timeouts, sample(3, 7, attempt=1), 2)
    assert after.seconds is not None
    assert before.seconds is not None
    assert after.seconds > before.seconds
    timeouts.fold(logged(committed((), 1)))
    assert limit(timeouts, sample(3, 7, attempt=1)) == after, "a group that round 1 has left to the next one"


def test_one_audit_that_was_correct_beyond_its_limit_stands_for_all_that_were_killed() -> None:
    """A slower way that the model has learned is let through, though a hundred runs were fast."""
    timeouts = taught(range(20), runs=100)
    narrow = limit(timeouts, sample(3, 7, attempt=1)).seconds
    assert narrow is not None
    assert narrow < 6.0
    learn(timeouts, graded(sample(3, 0, attempt=1), 6.0, TimeLimit(narrow, audit=True)))
    timeouts.fold(logged(opened(2)))
    wide = limit(timeouts, sample(3, 7, attempt=1), 2).seconds
    assert wide is not None
    assert wide > 6.0


def test_what_is_graded_again_counts_once() -> None:
    once, twice = taught(range(20)), taught(range(20))
    learn(once, graded(sample(3, 0, attempt=1), 2.0))
    learn(twice, graded(sample(3, 0, attempt=1), 1.0), graded(sample(3, 0, attempt=1), 2.0))
    assert twice.to_snapshot() == once.to_snapshot() != taught(range(20)).to_snapshot()


GIVEN_UP = [
    events.GroupDeferred(PromptId(0, 3), 1, DeferReason.TOO_LONG),
    events.GroupDropped(PromptId(0, 3), 1, DropReason.GRADER_ERROR),
]


@pytest.mark.parametrize("given_up", GIVEN_UP, ids=["deferred", "dropped"])
def test_a_group_that_is_given_up_leaves_no_trace(given_up: events.Body) -> None:
    """Its slow grades are missing."""
    timeouts = taught(range(20))
    before = timeouts.to_snapshot()
    timeouts.fold(logged(graded(sample(3, 0, attempt=1), 0.1)))
    timeouts.fold(logged(graded(sample(3, 1, attempt=1), 0.1, TimeLimit(2.0, audit=True))))
    assert timeouts.to_snapshot() != before, "they may count yet"
    timeouts.fold(logged(given_up))
    assert timeouts.to_snapshot() == before


def test_a_group_of_equal_rewards_counts_though_it_is_dropped() -> None:
    dropped, trained = taught(range(20)), taught(range(20))
    dropped.fold(logged(graded(sample(3, 0, attempt=1), 9.0)))
    dropped.fold(logged(events.GroupDropped(PromptId(0, 3), 1, DropReason.ZERO_VARIANCE)))
    learn(trained, graded(sample(3, 0, attempt=1), 9.0))
    assert dropped.to_snapshot() == trained.to_snapshot()


@given(st.lists(st.floats(0.0, HARD_LIMIT), min_size=1, max_size=16), st.randoms())
def test_the_order_of_grades_is_irrelevant_bit_for_bit(seconds: list[float], random: random.Random) -> None:
    grades = [graded(sample(number % 4, number), of) for number, of in enumerate(seconds)]
    ordered, shuffled = (LearnedTimeouts([REWARD], lambda row: "") for _ in range(2))
    learn(ordered, *grades)
    learn(shuffled, *random.sample(grades, len(grades)))
    assert shuffled.to_snapshot() == ordered.to_snapshot()


@given(
    st.lists(st.tuples(st.integers(0, 5), st.floats(0.0, 4.0), st.booleans(), st.booleans()), max_size=30),
    st.floats(1.0, 10.0),
    st.sampled_from([0.001, 1.0, HARD_LIMIT]),
    st.data(),
)
def test_limits_are_within_their_bounds_and_the_same_after_a_restart(
    grades: list[tuple[int, float, bool, bool]], factor: float, least: float, data: st.DataObject
) -> None:
    """Also those of rounds that were open then; each is trained when two more have opened, while their grades are held."""
    spec = reward(factor=factor, minSeconds=least)
    samples = {number: SampleId(number, row, 0, 1) for number, (row, *_) in enumerate(grades, start=1)}

    def fold(into: LearnedTimeouts, first: int, last: int) -> None:
        for number in range(first, last + 1):
            _, seconds, correct, audit = grades[number - 1]
            into.fold(logged(opened(number)))
            given_limit = TimeLimit(limit(into, samples[number], max(number - 1, 1)).seconds, audit)
            into.fold(logged(graded(samples[number], seconds, given_limit, score=float(correct))))
            if number > 2:
                into.fold(logged(committed([samples[number - 2]], number - 2)))

    def limits(of: LearnedTimeouts, rounds: Iterable[int]) -> list[TimeLimit]:
        return [limit(of, sample(row, 7), number) for number in rounds for row in range(7)]

    stop = data.draw(st.integers(0, len(grades)))
    whole, half = (LearnedTimeouts([spec], lambda row: str(row % 3)) for _ in range(2))
    fold(whole, 1, len(grades))
    fold(half, 1, stop)
    resumed = LearnedTimeouts([spec], lambda row: str(row % 3))
    resumed.restore(json.loads(json.dumps(half.to_snapshot())))
    resumed.fold(logged(events.Started(0)))
    under_way = range(max(stop - 1, 1), stop + 1)
    assert limits(resumed, under_way) == limits(half, under_way)
    assert resumed.to_snapshot() == half.to_snapshot()
    fold(resumed, stop + 1, len(grades))
    assert resumed.to_snapshot() == whole.to_snapshot()
    if grades:
        found = limits(whole, [len(grades)])
        assert found == limits(resumed, [len(grades)])
        assert all(of.seconds is None or least <= of.seconds <= HARD_LIMIT for of in found)


@given(st.lists(st.tuples(st.integers(0, 6), st.floats(-3.0, 3.0), st.sampled_from([1.0, 50.0])), max_size=80))
def test_what_is_summed_up_of_a_domain_is_what_its_problems_say(runs: list[tuple[int, float, float]]) -> None:
    problems: dict[int, ProblemTimes] = {}
    domain = DomainTimes()
    for row, logarithm, weight in runs:
        before = problems.get(row, ProblemTimes())
        problems[row] = before.after(logarithm, weight, unlimited=False)
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
    assert RULE.audited("tests", of) == Rule.from_rewards([REWARD])["tests"].audited("tests", of)


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
    assert of.freeze().for_sample(sample(0, 7), "domain 0").seconds is not None
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
