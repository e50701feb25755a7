"""The plan of engines' shapes: RollPacker's rule, within bounds, and never a size that engines can't have."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longboat_crds.rollout import ParallelismMode
from longboat_runtime.rollout.engine import EngineConfig
from longboat_runtime.rollout.parallelism import (
    QUIET_ROUNDS,
    Bounds,
    KindPlan,
    ParallelismPlan,
    by_preemptions,
    permitted,
)
from longboat_runtime.rounds.events import RoundKind

SHORT, LONG = RoundKind.SHORT, RoundKind.LONG
BOUNDS = Bounds((1, 2, 4), 1)
MODEL = {
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "intermediate_size": 96,
}
CONFIG = EngineConfig("e", "/model", "bfloat16")


def after(*preemptions: int, plan: KindPlan | None = None, sizes: tuple[int, ...] = (1, 2, 4)) -> KindPlan:
    plan = plan or KindPlan(1)
    for count in preemptions:
        plan = by_preemptions(plan, SHORT, count, sizes)
    return plan


def test_a_rise_takes_the_next_size_up() -> None:
    assert after(100).tensor_parallel == 1, "nothing to compare with"
    assert after(100, 105).tensor_parallel == 1
    risen = after(100, 106)
    assert (risen.tensor_parallel, risen.changes) == (2, 1)
    assert risen.reason == "preemptions in Short rounds rose from 100 to 106: 1 -> 2 devices an engine"
    assert after(100, 106, 112).tensor_parallel == 4
    assert after(100, 106, 112, 200).tensor_parallel == 4, "never across a pod"


def test_any_rise_from_none_is_a_rise() -> None:
    assert after(0, 1).tensor_parallel == 2


def test_rounds_without_preemptions_take_the_next_size_down() -> None:
    start = KindPlan(4)
    assert after(*[0] * (QUIET_ROUNDS - 1), plan=start).tensor_parallel == 4
    fallen = after(*[0] * QUIET_ROUNDS, plan=start)
    assert (fallen.tensor_parallel, fallen.quiet) == (2, 0)
    assert after(0, 0, 0, 5, 0, 0, 0, plan=KindPlan(2), sizes=(1, 2)).tensor_parallel == 2, "one after another"
    assert after(*[0] * 2 * QUIET_ROUNDS, plan=start).tensor_parallel == 1
    assert after(*[0] * 5 * QUIET_ROUNDS, plan=start).tensor_parallel == 1


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


@given(
    st.lists(st.tuples(st.sampled_from(RoundKind), st.integers(0, 50)), max_size=60),
    st.sampled_from([(1,), (1, 2), (1, 2, 4), (2, 4, 8), (3, 6)]),
    st.data(),
)
def test_a_plan_stays_within_its_bounds_and_repeats(
    rounds: list[tuple[RoundKind, int]], sizes: tuple[int, ...], data: st.DataObject
) -> None:
    bounds = Bounds(sizes, data.draw(st.sampled_from(sizes)))
    plan = again = ParallelismPlan.starting(bounds)
    for kind, preemptions in rounds:
        if data.draw(st.integers(0, 9)) == 0 and len(sizes) > len(plan.failed) + 1:
            failed = data.draw(st.sampled_from(sizes))
            present = next(size for size in sizes if size != failed and size not in plan.failed)
            plan, again = plan.after_failure(failed, present), again.after_failure(failed, present)
        before = plan
        plan = plan.measured(ParallelismMode.PREEMPTIONS, kind, preemptions, bounds)
        again = ParallelismPlan.from_snapshot(json.loads(json.dumps(again.to_snapshot())), bounds)
        again = again.measured(ParallelismMode.PREEMPTIONS, kind, preemptions, bounds)
        assert plan == again, "the same after a restart"
        for of, one in plan.kinds.items():
            assert one.tensor_parallel in sizes
            if of is not kind:
                assert one == before.kinds[of], "one kind says nothing about the other"
            if one.tensor_parallel != before.kinds[of].tensor_parallel:
                assert one.tensor_parallel not in plan.failed
                assert one.changes == before.kinds[of].changes + 1
                assert len(one.reason) <= 256


@pytest.mark.parametrize("mode", ParallelismMode)
def test_an_edit_moves_plans_into_their_bounds(mode: ParallelismMode) -> None:
    plan = ParallelismPlan({SHORT: KindPlan(4), LONG: KindPlan(1)}, frozenset({2}))
    edited = plan.bounded(mode, BOUNDS.within(2, 2))
    assert not edited.failed, "something has changed"
    wanted = 1 if mode is ParallelismMode.FIXED else 2
    assert {kind: one.tensor_parallel for kind, one in edited.kinds.items()} == {SHORT: wanted, LONG: wanted}


def test_a_fixed_shape_is_the_specs() -> None:
    plan = ParallelismPlan.starting(BOUNDS)
    for preemptions in (0, 10, 20, 40):
        plan = plan.measured(ParallelismMode.FIXED, SHORT, preemptions, BOUNDS)
    assert plan == ParallelismPlan.starting(BOUNDS)


def test_what_has_failed_is_not_tried_again() -> None:
    plan = ParallelismPlan.starting(BOUNDS)
    for preemptions in (0, 5):
        plan = plan.measured(ParallelismMode.PREEMPTIONS, SHORT, preemptions, BOUNDS)
    assert plan.kinds[SHORT].tensor_parallel == 2
    plan = plan.after_failure(2, 1)
    assert plan.kinds[SHORT].tensor_parallel == 1
    plan = plan.measured(ParallelismMode.PREEMPTIONS, SHORT, 50, BOUNDS)
    assert plan.kinds[SHORT].tensor_parallel == 4, "the next one that may serve"
