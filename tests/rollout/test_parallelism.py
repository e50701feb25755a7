"""The plan of engines' shapes: it follows what rounds take, within bounds, and never takes a size that engines can't have."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longboat_runtime.rollout.engine import EngineConfig
from longboat_runtime.rollout.parallelism import (
    EVIDENCE,
    REMEMBERED,
    TRIAL_COST,
    TRIAL_PREEMPTIONS,
    TRIAL_ROUNDS,
    Bounds,
    ParallelismPlan,
    PlanRules,
    permitted,
)
from longboat_runtime.rollout.round_seconds import Limits
from longboat_runtime.rollout.throughput import Profile
from longboat_runtime.rounds.measurements import Responses, RoundMeasured, RoundWork
from longboat_runtime.rounds.round_kind import RoundKind
from tests.rollout.roofline import roofline

SHORT, LONG = RoundKind.SHORT, RoundKind.LONG
SIZES = (1, 2, 4)
BOUNDS = Bounds(SIZES, 1)
MODEL = {
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "intermediate_size": 96,
}
CONFIG = EngineConfig("e", "/model", "bfloat16")
PROFILE = Profile({size: roofline(size) for size in SIZES}, dict.fromkeys(SIZES, 5.0))
SAMPLES, LEFT = 8, 1000


def rules(profile: Profile | None = None) -> PlanRules:
    return PlanRules(BOUNDS, Limits(64, 10_000), profile)


def measured(
    size: int, seconds: float, preemptions: int = 0, kind: RoundKind = SHORT, length: int = 100
) -> RoundMeasured:
    """A round of SAMPLES responses of this length to as many prompts, on four devices."""
    work = RoundWork(seconds, 10.0, Responses(SAMPLES, SAMPLES, (length,) * SAMPLES))
    return RoundMeasured(1, kind, size, 4 // size, preemptions, 0, length * SAMPLES, 0, 0, 0.0, work=work)


MUCH = round(TRIAL_PREEMPTIONS * SAMPLES) + 1


def after(
    plan: ParallelismPlan,
    seconds: Mapping[int, float],
    preemptions: Sequence[int],
    left: int = LEFT,
    profile: Profile | None = None,
    length: int = 100,
) -> ParallelismPlan:
    """The plan after rounds with so many preemptions, each of which takes the seconds of the plan's size."""
    for count in preemptions:
        plan = plan.after_round(measured(plan.size, seconds[plan.size], count, length=length), rules(profile), left)
    return plan


def test_sizes_are_those_that_model_pod_and_memory_allow() -> None:
    assert permitted(CONFIG, MODEL, {}, 100, 8) == (1, 2, 4, 8)
    assert permitted(CONFIG, MODEL, {}, 100, 6) == (1, 2)
    assert permitted(CONFIG, MODEL | {"num_attention_heads": 6, "num_key_value_heads": 3}, {}, 100, 6) == (1, 3, 6)
    weights = {"w": (1000, 1000)}  # 2 MB
    assert permitted(replace(CONFIG, device_memory=1_500_000), MODEL, weights, 100, 8) == (2, 4, 8)
    token = 2 * 2 * 2 * 8 * 2
    assert permitted(replace(CONFIG, kv_cache_bytes=50 * token), MODEL, {}, 100, 4) == (2, 4)
    assert permitted(replace(CONFIG, kv_cache_bytes=49 * token), MODEL, {}, 100, 4) == (), (
        "copied key heads are no gain"
    )


def test_rounds_that_are_preempted_much_try_the_next_size_up() -> None:
    """Once for rounds of like lengths, and never across a pod."""
    seconds = dict.fromkeys(SIZES, 10.0)
    assert after(ParallelismPlan(1), seconds, [MUCH - 1] * 9).size == 1
    tried = after(ParallelismPlan(1), seconds, [MUCH] * TRIAL_ROUNDS)
    assert tried.size == 2
    assert tried.reason == (
        "2 short rounds had many preemptions, and 2 is untried for such rounds: 1 -> 2 devices per engine"
    )
    assert after(tried, seconds, [MUCH] * TRIAL_ROUNDS).size == 4
    assert after(tried, seconds, [MUCH] * 9).size == 4


def test_rounds_without_preemptions_try_the_next_size_down() -> None:
    seconds = dict.fromkeys(SIZES, 10.0)
    assert after(ParallelismPlan(4), seconds, [0] * (TRIAL_ROUNDS - 1)).size == 4
    tried = after(ParallelismPlan(4), seconds, [0] * TRIAL_ROUNDS)
    assert tried.size == 2
    assert after(tried, seconds, [0] * 9).size == 1
    assert after(ParallelismPlan(4), seconds, [0, 1] * 9).size == 4, "in a row"


def test_the_better_size_stays_and_the_other_is_tried_again_only_for_other_lengths() -> None:
    seconds = {1: 10.0, 2: 15.0, 4: 15.0}
    back = after(ParallelismPlan(1), seconds, [MUCH] * 6)
    assert back.size == 1
    assert back.reason.startswith("recent rounds would have been")
    assert after(back, seconds, [MUCH] * 20).size == 1
    assert after(back, seconds, [MUCH] * TRIAL_ROUNDS, length=200).size == 2
    faster = after(ParallelismPlan(1), {1: 10.0, 2: 8.0, 4: 8.0}, [MUCH] * TRIAL_ROUNDS + [1] * 20)
    assert faster.size == 2


def test_a_trial_has_to_be_cheap_beside_the_rounds_that_are_left() -> None:
    seconds = dict.fromkeys(SIZES, 10.0)
    start = ParallelismPlan(1).reshaped(1, 5.0).reshaped(2, 5.0)
    needed = round(2 * 5.0 / (TRIAL_COST * 10.0))
    assert after(start, seconds, [MUCH] * TRIAL_ROUNDS, left=needed - 1).size == 1
    assert after(start, seconds, [MUCH] * TRIAL_ROUNDS, left=needed).size == 2
    assert after(start, seconds, [MUCH] * TRIAL_ROUNDS, left=0).size == 1, "nothing follows"


def test_a_profile_moves_engines_once_a_size_has_forgone_its_change_and_some_evidence() -> None:
    """Each round would have taken the same share less."""
    body = measured(1, 1.0, preemptions=1, length=4000)
    plan = ParallelismPlan(1).after_round(body, rules(PROFILE), LEFT)
    saved = max(plan.savings.values())
    assert plan.size == 1
    rounds = 1
    while plan.size == 1:
        plan, rounds = plan.after_round(body, rules(PROFILE), LEFT), rounds + 1
        assert rounds < 1000
    assert (rounds - 1) * saved <= 5.0 + EVIDENCE * 1.0 < rounds * saved
    assert plan.savings == {}, "what counts is what comes after a change"


def test_measured_rounds_correct_the_profile() -> None:
    """It says that two devices take half as long; rounds with them take as long as before, and then some."""
    claimed = replace(
        PROFILE.throughput[1], seconds=tuple(tuple(s / 2 for s in row) for row in PROFILE.throughput[1].seconds)
    )
    profile = Profile({1: PROFILE.throughput[1], 2: claimed}, dict.fromkeys(SIZES, 5.0))
    bounded = replace(rules(profile), bounds=Bounds((1, 2), 1))
    plan, sizes = ParallelismPlan(1), []
    for _ in range(60):
        plan = plan.after_round(measured(plan.size, {1: 10.0, 2: 14.0}[plan.size], 1), bounded, LEFT)
        sizes.append(plan.size)
    assert 2 in sizes
    assert sizes[-40:] == [1] * 40


rounds = st.tuples(
    st.sampled_from(RoundKind), st.floats(0.0, 1e4), st.integers(0, 50), st.integers(0, 5000), st.booleans()
)


@given(st.lists(rounds, max_size=60), st.booleans(), st.sampled_from(SIZES), st.data())
def test_a_plan_stays_within_its_bounds_and_repeats(
    happened: list[tuple[RoundKind, float, int, int, bool]], profiled: bool, start: int, data: st.DataObject
) -> None:
    plan = again = ParallelismPlan(start)
    followed = rules(PROFILE if profiled else None)
    for number, (kind, seconds, preemptions, length, fails) in enumerate(happened):
        before = plan
        again = ParallelismPlan.from_snapshot(json.loads(json.dumps(again.to_snapshot())), BOUNDS)
        plan, again = (
            one.after_round(
                measured(one.size, seconds, preemptions, kind, length), followed, len(happened) - number - 1
            )
            for one in (plan, again)
        )
        assert plan == again, "the same after a restart"
        assert plan.size in SIZES
        assert len(plan.similar) <= REMEMBERED
        assert len(plan.reason) <= 256
        if plan.size != before.size:
            assert plan.size not in plan.failed
            if fails:
                plan = again = plan.after_failure(plan.size, before.size)
                assert plan.size == before.size
            else:
                took = data.draw(st.floats(0.0, 100.0))
                plan, again = (one.reshaped(one.size, took) for one in (plan, again))


def test_an_edit_moves_the_plan_into_its_bounds() -> None:
    edited = ParallelismPlan(4, failed=frozenset({2})).bounded(BOUNDS.within(2, 2))
    assert not edited.failed, "something has changed"
    assert edited.size == 2


def test_nothing_is_learned_where_there_is_no_choice() -> None:
    fixed = replace(rules(PROFILE), bounds=Bounds((1,), 1))
    assert ParallelismPlan(1).after_round(measured(1, 10.0, MUCH), fixed, LEFT) == ParallelismPlan(1)


def test_what_has_failed_is_not_tried_again() -> None:
    seconds = dict.fromkeys(SIZES, 10.0)
    plan = after(ParallelismPlan(1), seconds, [MUCH] * TRIAL_ROUNDS).after_failure(2, 1)
    assert plan.size == 1
    plan = after(plan, seconds, [MUCH] * TRIAL_ROUNDS)
    assert plan.size == 4, "the next one that may serve"
    assert plan.on_other_pods().failed == frozenset()


def test_rounds_in_another_shape_or_without_responses_teach_nothing() -> None:
    plan = ParallelismPlan(1)
    assert plan.after_round(measured(2, 10.0, MUCH), rules(PROFILE), LEFT) == plan
    assert plan.after_round(replace(measured(1, 10.0), work=None), rules(), LEFT) == plan
    assert plan.after_round(measured(1, 0.0, MUCH), rules(), LEFT) == plan


def test_one_slow_round_says_nothing_about_its_size() -> None:
    """Of two devices it is known that they are slower; then a round takes eight times as long, as if an engine had been lost."""
    seconds = {1: 10.0, 2: 11.0, 4: 11.0}
    plan = after(ParallelismPlan(2), seconds, [0] * TRIAL_ROUNDS + [1] * 20)
    assert plan.size == 1
    plan = plan.after_round(measured(1, 80.0, 1), rules(), LEFT)
    assert plan.size == 1
    assert after(plan, seconds, [1] * 20).size == 1


def test_what_was_forgone_is_kept_in_rounds_that_say_nothing_about_a_size() -> None:
    start = after(ParallelismPlan(2).reshaped(1, 30.0), {1: 8.0, 2: 10.0}, [0] * TRIAL_ROUNDS)
    plan = after(start, {1: 8.0}, [1] * 3).after_failure(4, 1)
    plan = replace(plan, size=2)
    sums = []
    for kind in (SHORT, LONG, SHORT):
        plan = plan.after_round(measured(2, 10.0, 1, kind), rules(), LEFT)
        sums.append(plan.savings[1])
    assert sums == pytest.approx([2.0, 2.0, 4.0])


def test_a_failed_change_leaves_a_plan_that_was_edited_meanwhile() -> None:
    plan = ParallelismPlan(4).bounded(Bounds((1,), 1))
    assert plan.after_failure(4, 2).size == BOUNDS.start
    assert ParallelismPlan(4).after_failure(4, 2).size == 2


def test_rounds_on_more_devices_are_not_like_those_on_fewer() -> None:
    plan = after(ParallelismPlan(4), dict.fromkeys(SIZES, 10.0), [0] * TRIAL_ROUNDS)
    assert plan.size == 2
    more = [replace(measured(2, 10.0, MUCH), engines=4)] * TRIAL_ROUNDS
    for body in more:
        plan = plan.after_round(body, rules(), LEFT)
    assert plan.size == 4, "it was tried on half of the devices only"
