"""Runs whose length can be worked out by hand, and what holds of all runs."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longboat_runtime.rounds.bounded_async import BoundedAsync
from longboat_runtime.rounds.continue_unfinished import ContinueUnfinished
from longboat_runtime.rounds.synchronous import Synchronous
from longboat_runtime.rounds.tail_batching import TailBatching
from longboat_runtime.simulate.curve import StepCurve
from longboat_runtime.simulate.lengths import TwoLevel
from longboat_runtime.simulate.simulation import simulate
from longboat_runtime.simulate.site import Site
from tests.support.examples import examples

AnyPolicy = Synchronous | TailBatching | ContinueUnfinished | BoundedAsync

FLAT = StepCurve((1,), (0.01,))
RISING = StepCurve((1, 64), (0.006, 0.015))


def constant(tokens: int) -> TwoLevel:
    return TwoLevel(tokens, 0.0, 0.0, tokens)


policies = st.builds(
    lambda kind, prompts, group, factor, samples, drop: {
        "Synchronous": lambda: Synchronous(prompts, group, drop),
        "TailBatching": lambda: TailBatching(prompts, group, factor, samples, drop),
        "ContinueUnfinished": lambda: ContinueUnfinished(prompts, group, factor, drop),
        "BoundedAsync": lambda: BoundedAsync(prompts, group, round(factor), drop),
    }[kind](),
    st.sampled_from(["Synchronous", "TailBatching", "ContinueUnfinished", "BoundedAsync"]),
    st.integers(1, 6),
    st.integers(2, 4),
    st.sampled_from([1.0, 1.125, 1.25, 1.5]),
    st.sampled_from([1.0, 1.5]),
    st.booleans(),
)
sites = st.builds(
    Site,
    curve=st.sampled_from([FLAT, RISING]),
    engines=st.integers(1, 3),
    max_sequences=st.integers(1, 40),
    latency=st.sampled_from([0.0, 0.05]),
    graders=st.integers(1, 3),
    grading=st.sampled_from([0.0, 0.02]),
    update=st.sampled_from([0.0, 1.0]),
    update_token=st.sampled_from([0.0, 0.001]),
    chunk_tokens=st.sampled_from([None, 1, 100]),
    chunk=st.sampled_from([0.0, 0.1]),
    publish=st.sampled_from([0.0, 0.3]),
    flat=st.sampled_from([0.0, 0.3]),
)


def test_a_round_of_equal_responses_takes_what_arithmetic_says() -> None:
    site = Site(RISING, engines=2, latency=0.1, graders=2, grading=0.05, update=1.0, update_token=0.01, publish=0.5)
    outcome = simulate(Synchronous(4, 4), 4, site, constant(100), 3)
    rollout = 0.1 + 100 * RISING(8) + 0.1
    for step in outcome.steps:
        assert step.rollout == pytest.approx(rollout)
        assert step.seconds == pytest.approx(0.5 + rollout + 16 / 2 * 0.05 + 1.0 + 0.01 * 1600)
        assert (step.trained, step.generated, step.kept) == (16, 1600, 1600)


def test_a_step_trains_what_no_chunk_has() -> None:
    """The samples of a prompt end together, after 0.2, 0.4, 0.6 and 0.8 s. The chunk of the first two ends after the round."""
    site = Site(FLAT, max_sequences=4, update=0.5, update_token=0.005, chunk_tokens=160, chunk=0.1)
    [step] = simulate(Synchronous(4, 4), 4, site, constant(20), 1).steps
    assert (step.chunks, step.streamed, step.kept) == (1, 160, 320)
    assert step.overlap == pytest.approx(0.4)
    assert step.seconds == pytest.approx(0.4 + (0.1 + 0.8) + (0.5 + 0.8))


def test_streaming_hides_the_trainers_time() -> None:
    distribution = TwoLevel(50, 1.0, 0.7, 2000)
    outcomes = [
        simulate(
            Synchronous(32, 4),
            4,
            Site(FLAT, engines=2, update=0.1, update_token=0.0005, chunk_tokens=tokens, chunk=0.05),
            distribution,
            12,
        )
        for tokens in (None, 1000)
    ]
    waiting, streaming = outcomes
    assert waiting.streamed_share == 0
    assert streaming.streamed_share > 0.7
    assert streaming.rollout_per_sample == pytest.approx(waiting.rollout_per_sample)
    assert streaming.seconds_per_sample < 0.85 * waiting.seconds_per_sample


def test_engines_that_are_full_make_waves() -> None:
    outcome = simulate(Synchronous(5, 4), 4, Site(FLAT, engines=2, max_sequences=4), constant(10), 1)
    assert outcome.rollout_per_round == pytest.approx(3 * 10 * 0.01)


@pytest.mark.parametrize("overcommit", [1.125, 1.25, 1.5])
def test_on_a_long_tail_short_rounds_pay(overcommit: float) -> None:
    distribution, site = TwoLevel(16, 1.1, 0.7, 2000), Site(RISING, engines=2)
    waiting = simulate(Synchronous(16, 4), 4, site, distribution, 36)
    racing = simulate(TailBatching(16, 4, overcommit, 1.0), 4, site, distribution, 36)
    assert racing.rollout_per_sample < 0.8 * waiting.rollout_per_sample
    assert racing.generated_to_kept > waiting.generated_to_kept == 1


@settings(max_examples=examples(40))
@given(policies, sites, st.integers(1, 8), st.integers(0, 100))
def test_what_is_trained_was_generated_and_all_rounds_are_there(
    policy: AnyPolicy, site: Site, steps: int, seed: int
) -> None:
    distribution = TwoLevel(10, 0.8, 0.8, 200, seed)
    outcome = simulate(policy, policy.group_size, site, distribution, steps)
    assert [step.step for step in outcome.steps] == [*range(1, steps + 1)]
    assert all(step.rollout <= step.seconds + 1e-9 for step in outcome.steps)
    full = policy.prompts_per_round * policy.group_size
    if not policy.drop_zero_variance:
        assert {step.trained for step in outcome.steps} == {full}
    generated, kept = (sum(getattr(step, name) for step in outcome.steps) for name in ("generated", "kept"))
    assert generated >= kept > 0
    assert all(0 <= step.streamed <= step.kept for step in outcome.steps)
    assert all((step.chunks > 0) == (step.streamed > 0) for step in outcome.steps)
    assert all(step.overlap <= step.rollout + 1e-9 for step in outcome.steps)
    assert simulate(policy, policy.group_size, site, distribution, steps) == outcome, "the same again"


def rollout_seconds(policy: AnyPolicy, engines: int, steps: int, seed: int) -> float:
    distribution, site = TwoLevel(10, 0.8, 0.8, 200, seed), Site(RISING, engines=engines, max_sequences=16)
    return sum(step.rollout for step in simulate(policy, policy.group_size, site, distribution, steps).steps)


@settings(max_examples=examples(30))
@given(
    policies.filter(lambda policy: not isinstance(policy, TailBatching)),
    st.integers(1, 3),
    st.integers(1, 8),
    st.integers(0, 100),
)
def test_more_engines_never_take_much_longer(policy: AnyPolicy, engines: int, steps: int, seed: int) -> None:
    """Samples that wait may be packed worse (Graham's anomalies), hence the tolerance."""
    few, many = (rollout_seconds(policy, count, steps, seed) for count in (engines, engines + 1))
    assert many <= 1.1 * few


@pytest.mark.parametrize("engines", [1, 2, 3])
@pytest.mark.parametrize(("prompts", "overcommit", "oversample"), [(2, 1.5, 1.0), (4, 1.25, 1.5), (6, 1.125, 1.0)])
def test_nor_where_rounds_race_on_average(engines: int, prompts: int, overcommit: float, oversample: float) -> None:
    """Other prompts may win a single race, longer ones among them."""
    policy = TailBatching(prompts, 4, overcommit, oversample)
    few, many = (sum(rollout_seconds(policy, count, 8, seed) for seed in range(20)) for count in (engines, engines + 1))
    assert many <= few


@settings(max_examples=examples(20))
@given(st.integers(1, 8), st.sampled_from([1.0, 1.125, 1.25, 1.5, 2.0]), st.integers(0, 100))
def test_share_of_long_rounds_is_that_of_the_closed_form(prompts: int, overcommit: float, seed: int) -> None:
    rounds = 24
    policy = TailBatching(prompts, 2, overcommit, 1.0)
    outcome = simulate(policy, 2, Site(FLAT), TwoLevel(10, 0.8, 0.8, 200, seed), rounds + 40, most_steps=rounds)
    share = 1 - 1 / Fraction(str(overcommit))
    assert abs(outcome.long_share - share) <= 1 / rounds + 1e-9


def test_prompts_that_teach_nothing_are_replaced_in_the_race() -> None:
    policy = TailBatching(8, 4, 1.25, 1.0, drop_zero_variance=True)
    distribution = TwoLevel(10, 0.8, 0.8, 200)
    all_teach, few_do, most_do = (
        simulate(policy, 4, Site(FLAT, flat=flat), distribution, 60, most_steps=40) for flat in (0, 0.4, 0.1)
    )
    assert all_teach.long_share > most_do.long_share > few_do.long_share == 0
    assert few_do.generated_to_kept > most_do.generated_to_kept


def test_a_policy_that_runs_ahead_overlaps_rollout_and_training() -> None:
    site = Site(FLAT, update=1.0, publish=0.1)
    together = simulate(BoundedAsync(4, 2, 2), 2, site, constant(100), 8)
    apart = simulate(Synchronous(4, 2), 2, site, constant(100), 8)
    assert together.seconds_per_sample < 0.7 * apart.seconds_per_sample


def test_a_site_that_cannot_be_is_refused() -> None:
    with pytest.raises(ValueError, match="needs an engine"):
        Site(FLAT, engines=0)
    with pytest.raises(ValueError, match="negative"):
        Site(FLAT, grading=-1.0)


def test_a_run_without_a_step_is_no_run() -> None:
    with pytest.raises(ValueError, match="without a step"):
        simulate(Synchronous(1, 2), 2, Site(FLAT), constant(5), 0)
