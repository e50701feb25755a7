"""Auto: on windows as the audit sees them, of distributions that are known."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from longboat_runtime.rounds.audit.lengths import PromptLengths
from longboat_runtime.rounds.by_domain import ByDomain
from longboat_runtime.rounds.policy import Policy
from longboat_runtime.rounds.tail_batching import TailBatching
from longboat_runtime.simulate.curve import StepCurve
from longboat_runtime.simulate.lengths import TwoLevel
from longboat_runtime.simulate.overcommit import PERIODS, Choice, choose, pick
from longboat_runtime.simulate.simulation import simulate
from longboat_runtime.simulate.site import Site
from tests.rounds.audit.racing import LONGEST, MEDIAN, PROMPT_SIGMA, SAMPLE_SIGMA, Racing, play

pytestmark = pytest.mark.extended

PROMPTS, GROUP = 32, 8
LATENCY_BOUND = StepCurve((1,), (0.01,))
# Measured on engines of small models on CPUs, or nearly so.
RISING = StepCurve((1, 64), (0.006, 0.015))
COMPUTE_BOUND = StepCurve((1, 256), (0.001, 0.256))
ROOM = 10**9


def tail_batching(factor: float) -> Policy:
    return TailBatching(PROMPTS, GROUP, factor, 1.0)


def by_domain(factor: float) -> Policy:
    rules = {name: TailBatching(PROMPTS // 2, GROUP, factor, 1.0) for name in ("math", "code")}
    return ByDomain(PROMPTS, GROUP, rules)


def chosen(
    window: list[PromptLengths],
    curve: StepCurve,
    kv_tokens: int = ROOM,
    policy: Callable[[float], Policy] = tail_batching,
    present: float = 1.0,
) -> Choice:
    return choose(
        window,
        LONGEST,
        Site(curve, engines=2),
        policy,
        present=present,
        prompts_per_round=PROMPTS,
        group_size=GROUP,
        kv_tokens=kv_tokens,
    )


@cache
def seconds(factor: float, curve: StepCurve) -> float:
    """What the factor takes under the distribution that the window is a sample of."""
    distribution = TwoLevel(MEDIAN, PROMPT_SIGMA, SAMPLE_SIGMA, LONGEST)
    policy = TailBatching(PROMPTS, GROUP, factor, 1.0)
    return simulate(policy, GROUP, Site(curve, engines=2), distribution, 400, most_steps=45).rollout_per_round


def test_the_choice_is_nearly_the_best() -> None:
    """Of one window of eight periods."""
    window = play(Racing(prompt_overcommit=1.25), 32, np.random.default_rng(1)).prompts()
    truth = {factor: seconds(factor, RISING) for factor in PERIODS}
    choice = chosen(window, RISING)
    assert choice.factor > 1
    assert truth[choice.factor] <= min(truth.values()) / 0.97
    assert choice.predicted[choice.factor] <= 1.01 * min(choice.predicted.values())
    assert choice.reason.startswith(f"{choice.factor:g}: ")


@pytest.mark.parametrize("curve", [LATENCY_BOUND, COMPUTE_BOUND])
def test_equal_responses_are_not_raced(curve: StepCurve) -> None:
    window = [PromptLengths("math", (200,) * GROUP, (), (), (200,) * GROUP) for _ in range(60)]
    choice = chosen(window, curve)
    assert choice.factor == 1
    assert choice.predicted[1.0] == pytest.approx(200 * curve(PROMPTS * GROUP // 2), rel=1e-6)


WINDOWS = st.lists(
    st.lists(st.floats(0.1, 10), min_size=len(PERIODS), max_size=len(PERIODS)), min_size=2, max_size=8
).map(lambda rows: {factor: [row[place] for row in rows] for place, factor in enumerate(PERIODS)})


@given(seconds=WINDOWS, present=st.sampled_from([*PERIODS]))
def test_the_present_factor_stays_unless_another_is_surely_faster(
    seconds: dict[float, list[float]], present: float
) -> None:
    factor = pick(seconds, present)
    means = {other: float(np.mean(found)) for other, found in seconds.items()}
    fastest = min(means.values())
    if factor != present:
        assert means[factor] <= 1.01 * fastest
        assert not any(means[other] <= 1.01 * fastest for other in means if other < factor)
        saved = np.subtract(seconds[present], seconds[factor])
        assert factor == 1 or saved.mean() > 1.4 * saved.std(ddof=1)


@given(seconds=WINDOWS, present=st.sampled_from([*PERIODS]), slower=st.floats(1.02, 3))
def test_what_is_faster_in_every_window_by_as_much_is_taken(
    seconds: dict[float, list[float]], present: float, slower: float
) -> None:
    best = 1.25
    less = min(map(min, seconds.values()))
    seconds = {factor: [less * (1 if factor == best else slower)] * 8 for factor in seconds}
    assert pick(seconds, present) == best


def test_nothing_races_without_need() -> None:
    def always(**seconds: float) -> dict[float, list[float]]:
        return {float(factor[1:].replace("_", ".")): [of] * 8 for factor, of in seconds.items()}

    assert pick(always(_1=2.0, _1_125=2.01, _1_25=1.99), 1.25) == 1
    assert pick(always(_1=2.05, _1_125=2.0, _1_25=2.0), 1.25) == 1.25
    assert pick(always(_1=2.05, _1_125=2.0, _1_25=2.07), 1.25) == 1.125
    assert pick(always(_1=2.05, _1_125=2.0, _1_25=1.99), 1.125) == 1.125
    assert pick(always(_1=2.05, _1_125=2.06, _1_5=1.99), 1.125) == 1.5


def test_what_chance_says_changes_nothing() -> None:
    """1.5 is faster by 5 % on average, and slower in half of the windows."""
    seconds = {1.0: [9.0] * 4, 1.25: [4.0] * 4, 1.5: [3.4, 4.1, 3.6, 4.1]}
    assert pick(seconds, 1.25) == 1.25
    assert pick({**seconds, 1.5: [3.7, 3.9, 3.8, 3.8]}, 1.25) == 1.5


def test_a_factor_that_is_not_among_the_candidates_goes() -> None:
    assert pick({1.0: [3.0] * 4, 1.25: [2.0, 2.5, 1.9, 2.2]}, 1.3) == 1.25


def test_choices_after_a_single_period_are_nearly_the_best_on_average() -> None:
    """Windows of one period mislead: what is chosen by them takes little longer than the best, and than where they began."""
    truth = {factor: seconds(factor, RISING) for factor in PERIODS}
    windows = [play(Racing(prompt_overcommit=1.25), 4, np.random.default_rng(seed)).prompts() for seed in range(3)]
    choices = [chosen(window, RISING, present=1.25) for window in windows]
    assert np.mean([truth[choice.factor] for choice in choices]) <= min(truth.values()) / 0.97
    for choice in choices:
        slower = choice.predicted[choice.factor] > 1.01 * min(choice.predicted.values())
        assert ("by chance" in choice.reason) is slower


def test_domains_with_quotas_have_lengths_of_their_own() -> None:
    """One domain's responses are all alike, the other's have a tail: what is predicted without a race is the longest of both."""
    code = [PromptLengths("code", (10,) * GROUP, (), (), (10,) * GROUP) for _ in range(60)]
    math = [PromptLengths("math", (300,) * GROUP, (), (), (300,) * GROUP) for _ in range(60)]
    choice = chosen([*code, *math], LATENCY_BOUND, policy=by_domain)
    assert choice.predicted[1.0] == pytest.approx(300 * 0.01)
    assert choice.factor == 1


def test_what_engines_cannot_hold_is_not_chosen() -> None:
    window = play(Racing(prompt_overcommit=1.25), 8, np.random.default_rng(2)).prompts()
    choice = chosen(window, LATENCY_BOUND, kv_tokens=1000)
    assert choice.factor == 1
    assert "1.25 would need" in choice.reason
    assert "KV cache of 1000" in choice.reason
