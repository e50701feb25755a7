"""Rounds are predicted by a profile that measured ones correct, and shapes change only if that is worth it."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longboat_crds.rollout import ParallelismMode
from longboat_runtime.rollout.engine import EngineConfig, kv_tokens
from longboat_runtime.rollout.parallelism import Bounds, KindPlan, Outlook, ParallelismPlan, by_predictions
from longboat_runtime.rollout.predictions import Limits, Predictions, PricedRound
from longboat_runtime.rollout.round_seconds import Work, round_seconds, work_of
from longboat_runtime.rollout.throughput import EngineModel, Profile, Throughput
from longboat_runtime.rounds.events import Responses, RoundKind, RoundMeasured
from tests.rollout.closed_loop import SHORT, Job, Load, Plan, drive, fixed, oracle, roofline

ENGINE = EngineModel(10_000, 0.001, (1, 10), (100, 200), ((0.1, 0.1), (0.2, 0.2)))


def test_a_round_takes_its_prompts_and_the_steps_of_its_longest_response() -> None:
    assert round_seconds(ENGINE, 1, 10, Work(1, 1, 50, (20,))) == pytest.approx(0.05 + 20 * 0.1)
    assert round_seconds(ENGINE, 2, 10, Work(2, 2, 50, (10, 20))) == pytest.approx(0.05 + 20 * 0.1), "one each"
    both = 2 * 0.05 + 10 * (0.1 + 0.1 / 9) + 10 * 0.1
    assert round_seconds(ENGINE, 1, 10, Work(2, 2, 50, (10, 20))) == pytest.approx(both)
    one_by_one = 2 * 0.05 + 30 * 0.1
    assert round_seconds(ENGINE, 1, 1, Work(2, 2, 50, (10, 20))) == pytest.approx(one_by_one)
    assert round_seconds(ENGINE, 1, 10, Work(2, 1, 50, (10, 20))) == pytest.approx(both - 1.0), "the other is stopped"


def test_what_the_cache_cannot_hold_is_computed_again() -> None:
    small = replace(ENGINE, kv_tokens=130)
    work = Work(2, 2, 50, (40, 40))
    assert round_seconds(small, 1, 10, work) > round_seconds(ENGINE, 1, 10, work) + 0.05
    assert round_seconds(replace(ENGINE, kv_tokens=5), 1, 10, work) > 0, "one sequence always runs"


@given(
    st.lists(st.integers(1, 3000), min_size=1, max_size=60),
    st.integers(60, 20_000),
    st.integers(1, 4),
    st.integers(1, 40),
)
def test_every_round_ends_and_more_cache_never_hurts_much(
    lengths: list[int], kv_tokens: int, engines: int, most: int
) -> None:
    work = Work(len(lengths), len(lengths), 50, tuple(sorted(lengths)))
    seconds = round_seconds(replace(ENGINE, kv_tokens=kv_tokens), engines, most, work)
    assert seconds >= max(lengths) * 0.1
    assert round_seconds(replace(ENGINE, kv_tokens=10**9), engines, most, work) <= seconds * 1.5


def test_stopped_responses_get_lengths_that_are_known() -> None:
    responses = Responses(6, 3, (10, 20, 30), (30, 30, 30))
    assert work_of(responses, 5, (25, 40, 50, 60), 100).lengths[3:] == (40, 50, 60)
    assert min(work_of(responses, 5, (), 100).lengths[3:]) > 30, "none is known to be longer"


def planned(profile: Profile, job: Job, start: int, told: list[ParallelismPlan]) -> Plan:
    bounds = Bounds((1, 2, 4), 1)
    plan = replace(ParallelismPlan.starting(bounds), kinds={kind: KindPlan(start) for kind in RoundKind})

    def following(body: RoundMeasured, kind: RoundKind, left: int) -> Mapping[RoundKind, int]:
        nonlocal plan
        again = ParallelismPlan.from_snapshot(json.loads(json.dumps(plan.to_snapshot())), bounds)
        plan, again = (
            one.learned(body, profile, Limits(job.max_sequences, 8000)).predicted(
                profile, body.tensor_parallel, kind, left, bounds
            )
            for one in (plan, again)
        )
        assert plan == again, "the same after a restart"
        assert {one.tensor_parallel for one in plan.kinds.values()} <= {1, 2, 4}
        assert all(len(one.reason) <= 256 for one in plan.kinds.values())
        told.append(plan)
        return {of: one.tensor_parallel for of, one in plan.kinds.items()}

    return following


def engines(weights: float, **terms: float) -> Throughput:
    return {size: roofline(size, weights=weights, **terms) for size in (1, 2, 4)}  # type: ignore[arg-type]


@pytest.mark.extended
def test_a_constant_load_is_worth_one_change() -> None:
    """Of 60 jobs with random engines, loads and costs, hardly one changes the shape of a kind twice.

    The first rounds may mislead, since of responses that were stopped nobody knows how long they would have become.
    """
    changes = []
    draw = random.Random(1)
    for _ in range(60):
        truth = engines(draw.choice((0.003, 0.01, 0.04)), memory=60_000, weight_tokens=15_000)
        load = Load(median=draw.choice((300.0, 900.0, 1800.0)), overcommit=draw.choice((1.0, 1.25, 1.5)))
        start, costs, told = (
            draw.choice((1, 2, 4)),
            dict.fromkeys((1, 2, 4), draw.uniform(4, 20)),
            list[ParallelismPlan](),
        )
        job = Job(truth, lambda _, load=load: load, costs, noise=0.02, seed=draw.randrange(1000))  # type: ignore[misc]
        drive(job, 24, start, planned(Profile(truth, costs), job, start, told))
        changes.append(max(one.changes for one in told[-1].kinds.values()))
    assert sum(changed > 1 for changed in changes) <= 3
    assert sum(changed == 1 for changed in changes) > 10


def scaled(engine: EngineModel, by: float) -> EngineModel:
    return replace(engine, seconds=tuple(tuple(by * cell for cell in row) for row in engine.seconds))


# By how much the steps of engines of 1, 2 and 4 devices are wrong in the profile.
WRONG = {
    "right": (1.0, 1.0, 1.0),
    "slower": (1.3, 1.3, 1.3),
    "faster": (0.7, 0.7, 0.7),
    "apart": (0.7, 1.3, 0.7),
    "the other way": (1.3, 0.7, 1.3),
}


@pytest.mark.parametrize("sizes", [pytest.param((1, 2), marks=pytest.mark.extended), (1, 2, 4)])
@pytest.mark.parametrize("wrong", ["swapped", *(pytest.param(name, marks=pytest.mark.extended) for name in WRONG)])
def test_measured_rounds_correct_the_profile(wrong: str, sizes: tuple[int, ...]) -> None:
    """Over the run, its trials included, at least 0.95 of the best fixed shape."""
    truth, costs = engines(0.02), dict.fromkeys((1, 2, 4), 8.0)
    if wrong == "swapped":
        swapped = {1: truth[2], 2: truth[1], 4: truth[4]}
        profiled = {size: replace(swapped[size], kv_tokens=truth[size].kv_tokens) for size in sizes}  # as the spec says
    else:
        profiled = {
            size: scaled(truth[size], by) for size, by in zip(truth, WRONG[wrong], strict=True) if size in sizes
        }
    # The first size is the slowest, and the job starts with it.
    best = min(fixed(Job(truth, lambda _: Load(median=900.0), costs, seed=3), 60, size).seconds for size in sizes)
    job, told = Job(truth, lambda _: Load(median=900.0), costs, seed=3), list[ParallelismPlan]()
    seconds = drive(job, 60, 1, planned(Profile(profiled, costs), job, 1, told)).seconds
    assert best / seconds >= 0.95, f"{seconds} s, the best fixed shape takes {best} s"


def test_a_kv_cache_is_as_large_as_the_spec_and_the_engines_say() -> None:
    truth, costs = engines(0.02), {1: 1.0, 2: 1.0, 4: 1.0}
    swapped = Profile({1: truth[2], 2: truth[1]}, costs)
    known = swapped.with_kv_tokens({1: 14_000, 2: 54_000})
    assert {size: one.kv_tokens for size, one in known.throughput.items()} == {1: 14_000, 2: 54_000}
    assert known.throughput[1].seconds == truth[2].seconds
    partly = swapped.with_kv_tokens({1: 20_000})
    assert partly.throughput[2].kv_tokens == 20_000, "a larger engine holds no less"
    assert swapped.with_kv_tokens({2: 30_000}).throughput[1].kv_tokens == 30_000, "a smaller one holds no more"
    assert swapped.with_kv_tokens({}) == swapped


def test_the_memory_of_the_spec_says_what_engines_hold() -> None:
    model = {"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "hidden_size": 64}
    config = EngineConfig("e", "/models/m", "bfloat16")
    token_bytes = 2 * 2 * 2 * 16 * 2
    assert kv_tokens(config, model, {}, (1, 2)) == {}, "vLLM decides"
    cache = replace(config, kv_cache_bytes=1000 * token_bytes)
    assert kv_tokens(cache, model, {}, (1, 2, 4)) == {1: 1000, 2: 2000, 4: 2000}, "the two key heads are copied"
    shapes = {"layer.weight": (100, token_bytes)}  # 200 tokens' worth
    memory = replace(config, device_memory=1000 * token_bytes)
    assert kv_tokens(memory, model, shapes, (1, 2)) == {1: 700, 2: 1600}


PHASES = (
    Load(prompts=32, median=300.0, prompt_sigma=0.4, sample_sigma=0.3),
    Load(prompts=8, median=2500.0, prompt_sigma=0.7, longest=12_000),
)


def rounds_of(kind: RoundKind, seconds: Mapping[int, float], size: int, count: int) -> tuple[PricedRound, ...]:
    """As many rounds that took just what the profile says."""
    return tuple(PricedRound(number, kind, size, seconds[size], 1000, seconds) for number in range(count))


def test_a_kind_that_saves_changes_waits_for_nothing() -> None:
    """Short rounds have got four devices. Long ones would be a tenth faster with them too, and need no changes any more."""
    long = rounds_of(RoundKind.LONG, {1: 20.0, 2: 19.0, 4: 18.0}, 1, 1)
    learned = Predictions(
        9, (*rounds_of(SHORT, {1: 8.0, 2: 6.0, 4: 5.0}, 4, 8), *long), (SHORT,) * 4 + (RoundKind.LONG,)
    )
    costs, sizes = dict.fromkeys((1, 2, 4), 5.0), (1, 2, 4)
    outlook = Outlook(16, RoundKind.LONG, 4, costs)
    joined = by_predictions({SHORT: 4, RoundKind.LONG: 1}, learned, outlook, sizes)
    assert joined is not None
    assert (joined.sizes, joined.joins) == ({SHORT: 4, RoundKind.LONG: 4}, True)
    # What only costs a change waits until as much has been forgone.
    assert by_predictions({SHORT: 1, RoundKind.LONG: 1}, learned, replace(outlook, present=1), (1, 4)) is not None
    alone = replace(learned, rounds=rounds_of(SHORT, {1: 5.5, 2: 6.0, 4: 5.0}, 1, 1))
    assert by_predictions({SHORT: 1, RoundKind.LONG: 1}, alone, replace(outlook, present=1), (1, 4)) is None


@pytest.mark.extended
@pytest.mark.parametrize("seed", [5, 6, 7])
def test_shapes_follow_kinds_and_phases(seed: int) -> None:
    """Small engines suit many short responses, large ones few long ones: the load is one, then the other, 20 rounds each.

    The oracle knows when a phase begins; whoever learns it from rounds that it takes is a tenth slower at most.
    """
    truth = engines(0.015, memory=60_000, weight_tokens=25_000, communication=2e-4)
    costs, rounds = dict.fromkeys((1, 2, 4), 8.0), 60

    def job() -> Job:
        return Job(truth, lambda number: PHASES[number // 20 % 2], costs, seed=seed)

    of = {size: fixed(job(), rounds, size) for size in truth}
    best, least = min(one.seconds for one in of.values()), oracle(of, costs, 1)
    assert best / least >= 1.1, "one shape won't do"
    run, told = job(), list[ParallelismPlan]()
    seconds = drive(run, rounds, 1, planned(Profile(truth, costs), run, 1, told)).seconds
    assert least / seconds >= 0.9, f"{seconds} s, the oracle takes {least} s"
    assert best / seconds >= 1.05, f"{seconds} s, the best fixed shape takes {best} s"
    assert seconds <= drive(job(), rounds, 1, by_their_preemptions()).seconds


def by_their_preemptions() -> Plan:
    bounds = Bounds((1, 2, 4), 1)
    plan = ParallelismPlan.starting(bounds)

    def following(body: RoundMeasured, *_: object) -> Mapping[RoundKind, int]:
        nonlocal plan
        plan = plan.measured(ParallelismMode.PREEMPTIONS, body.kind, body.preemptions, bounds)
        return {of: one.tensor_parallel for of, one in plan.kinds.items()}

    return following


def test_the_gain_of_a_change_is_measured() -> None:
    truth, costs = engines(0.02), dict.fromkeys((1, 2, 4), 8.0)
    told: list[ParallelismPlan] = []
    job = Job(truth, lambda _: Load(median=900.0, overcommit=1.0), costs, noise=0.0)
    drive(job, 12, 1, planned(Profile(truth, costs), job, 1, told))
    plan = told[-1].kinds[SHORT]
    assert plan.expected is not None
    assert plan.gained is not None
    assert plan.gained == pytest.approx(plan.expected, abs=0.2)
