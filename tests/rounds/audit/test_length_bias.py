"""The results of an audit for any window, and when it has none."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longboat_runtime.rounds.audit.length_bias import MIN_PROMPTS, audit, worst
from longboat_runtime.rounds.audit.lengths import PromptLengths
from longboat_runtime.rounds.audit.paired import DRAWS
from tests.rounds.audit.windows import LONGEST, windows
from tests.support.examples import examples

large_windows = windows(least=MIN_PROMPTS, most=MIN_PROMPTS + 10)


def prompt(trained: tuple[int, ...], finished: tuple[int, ...] = (100, 200), domain: str = "math") -> PromptLengths:
    return PromptLengths(domain, finished, cut=(), later=(), trained=trained)


@given(windows(), st.randoms())
@settings(max_examples=examples(50))
def test_the_order_of_prompts_means_nothing(window: list[PromptLengths], random) -> None:
    shuffled = [*window]
    random.shuffle(shuffled)
    assert audit(shuffled, LONGEST) == audit(window, LONGEST)


@given(large_windows)
@settings(max_examples=examples(30))
def test_estimates_are_within_their_bounds(window: list[PromptLengths]) -> None:
    bias = audit([*window, *[prompt((100, 200))] * MIN_PROMPTS], LONGEST).overall
    assert 0 <= bias.ks.low <= bias.ks.value <= bias.ks.high <= 1
    assert 0 < bias.mean_ratio.low <= bias.mean_ratio.value <= bias.mean_ratio.high
    assert 0 <= bias.modelled <= 1
    assert 0 <= bias.censored <= 1


@given(large_windows, st.integers(1, 3))
@settings(max_examples=examples(30))
def test_a_policy_that_changes_nothing_has_no_bias(window: list[PromptLengths], size: int) -> None:
    groups = [(*prompt.finished, *prompt.later, 1, 2, 3)[:size] for prompt in window]
    bias = audit([prompt(trained=group, finished=group) for group in groups], LONGEST).overall
    assert (bias.censored, bias.modelled, bias.relaunched) == (0, 0, 0)
    for estimate, nothing in ((bias.ks, 0), (bias.mean_ratio, 1)):
        assert (estimate.value, estimate.low, estimate.high) == pytest.approx((nothing,) * 3, abs=1e-9)


def test_a_constant_change_is_found_as_it_is() -> None:
    bias = audit([prompt(trained=(100, 100))] * MIN_PROMPTS, LONGEST).overall
    assert bias.ks.value == pytest.approx(0.5)
    assert bias.mean_ratio.value == pytest.approx(2 / 3)
    assert bias.mean_ratio.low == pytest.approx(bias.mean_ratio.high)


def test_few_draws_have_their_functions_in_memory_at_a_time() -> None:
    groups = [tuple(range(100 * number + 1, 100 * number + 101)) for number in range(MIN_PROMPTS)]
    window, lengths = [prompt(trained=group, finished=group) for group in groups], 100 * MIN_PROMPTS
    tracemalloc.start()
    try:
        audit(window, lengths)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < DRAWS * lengths * np.dtype(float).itemsize


def test_a_deferred_prompt_counts_once() -> None:
    """Counting both launches would hide that only its short responses are in the data."""
    deferred = PromptLengths("math", finished=(100,), cut=(150,), later=(100, 400), trained=(100, 400))
    bias = audit([deferred] * MIN_PROMPTS, LONGEST).overall
    assert bias.mean_ratio.value == pytest.approx(1)
    assert bias.ks.value == pytest.approx(0)
    assert (bias.relaunched, bias.censored, bias.modelled) == (1, 0.5, 0)


def test_domains_are_judged_separately_and_together() -> None:
    window = [prompt((100, 200))] * MIN_PROMPTS + [prompt((100, 100), domain="code")] * MIN_PROMPTS
    found = audit(window, LONGEST)
    assert found.domains["math"].ks.high == pytest.approx(0, abs=1e-9)
    assert found.domains["code"].ks.value == pytest.approx(0.5)
    assert found.overall.ks.low < 0.25 < found.overall.ks.high
    assert found.overall.prompts == 2 * MIN_PROMPTS


@pytest.mark.parametrize("trained", [0, MIN_PROMPTS - 1])
def test_too_little_data_is_unresolved(trained: int) -> None:
    window = [prompt((100, 200))] * trained + [prompt(())] * MIN_PROMPTS
    bias = audit(window, LONGEST).overall
    assert bias.ks is bias.mean_ratio is None
    assert (bias.prompts, bias.trained) == (trained + MIN_PROMPTS, trained)
    few = audit([prompt((100, 200))] * (MIN_PROMPTS - 1), LONGEST)
    assert few.overall.ks is None


def test_an_invalid_window_is_refused() -> None:
    with pytest.raises(ValueError, match="no prompts"):
        audit([], LONGEST)
    with pytest.raises(ValueError, match="longer than the limit"):
        audit([prompt((), finished=(LONGEST + 1,))], LONGEST)
    with pytest.raises(ValueError, match="without a response"):
        prompt((), finished=())
    with pytest.raises(ValueError, match="not lengths"):
        prompt((), finished=(0,))
    with pytest.raises(ValueError, match="did not finish"):
        prompt((300,))


def test_the_worst_bias_is_that_of_tokens_or_seconds_and_of_domains_where_they_count() -> None:
    """Long samples are left out in one domain, by their seconds alone."""

    def each(domain: str, *, biased: bool) -> list[PromptLengths]:
        return [prompt((100,) if biased else (100, 200), domain=domain) for _ in range(2 * MIN_PROMPTS)]

    fair = [*each("a", biased=False), *each("b", biased=False)]
    audits = {
        "tokens": audit(fair, LONGEST),
        "seconds": audit([*each("a", biased=True), *each("b", biased=False)], LONGEST),
    }
    assert worst({"tokens": audits["tokens"]}, by_domain=True)[1].ks.low == 0
    overall = worst(audits, by_domain=False)
    assert overall == ("seconds", audits["seconds"].overall)
    assert worst(audits, by_domain=True) == ("seconds of a", audits["seconds"].domains["a"])
    assert overall[1].ks.low < audits["seconds"].domains["a"].ks.low
    unknown = audit(fair[:1], LONGEST)
    assert worst({"tokens": unknown}, by_domain=True) == ("tokens", unknown.overall)
    assert worst({"tokens": unknown, "seconds": audits["seconds"]}, by_domain=False) == overall
