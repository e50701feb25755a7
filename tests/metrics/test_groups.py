"""Metrics by group and domain."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longboat_runtime.metrics.groups import MOST_DOMAINS, GroupOutcome, group_metrics, pass_at_k, pass_rates
from longboat_runtime.metrics.record import read_records
from tests.driver.runs import finished

FLAT = {domain: GroupOutcome(domain, [0.0], [1], [False], True) for domain in ("", "chat", "code")}
counts = st.integers(1, 9).flatmap(
    lambda n: st.tuples(st.just(n), st.integers(0, n), st.integers(1, n)),
)


@given(counts)
def test_pass_at_k_is_the_share_of_choices_with_one_that_passes(of: tuple[int, int, int]) -> None:
    n, passed, k = of
    choices = list(itertools.combinations([True] * passed + [False] * (n - passed), k))
    assert pass_at_k(n, passed, k) == pytest.approx(sum(map(any, choices)) / len(choices))


@pytest.mark.parametrize("k", [0, 3])
def test_more_than_there_are_can_not_be_drawn(k: int) -> None:
    with pytest.raises(ValueError, match="2 responses"):
        pass_at_k(2, 1, k)


def test_rates_are_for_powers_of_two_up_to_the_largest_group() -> None:
    rates = pass_rates([[True, False, False, False], [False, True]])
    assert rates == {"pass@1": (0.25 + 0.5) / 2, "pass@2": (0.5 + 1.0) / 2, "pass@4": 1.0}
    assert pass_rates([]) == {}


def test_domains_have_their_own_rewards_lengths_and_shares_of_equal_rewards() -> None:
    groups = [
        GroupOutcome("math", [1.0, 0.0], [10, 20], [True, False], False),
        GroupOutcome("math", [1.0, 1.0], [30, 40], [True, True], True),
        GroupOutcome("code", [0.0, 0.5], [1, 3], [False, False], False),
    ]
    metrics = group_metrics(groups, [FLAT["code"], FLAT["chat"], FLAT["chat"]])
    assert metrics["critic/rewards/math/mean"] == 0.75
    assert metrics["critic/rewards/code/mean"] == 0.25
    assert metrics["response_length/math/mean"] == 25
    assert metrics["critic/zero_variance/math"] == metrics["critic/zero_variance/code"] == 0.5
    assert metrics["critic/zero_variance/chat"] == 1.0
    assert "critic/rewards/chat/mean" not in metrics
    assert metrics["critic/zero_variance"] == 4 / 6
    assert metrics["critic/pass@2"] == 2 / 3


def test_rows_without_domains_have_only_the_totals() -> None:
    metrics = group_metrics([GroupOutcome("", [1.0, 0.0], [1, 2], [True, False], False)], [FLAT[""]])
    assert metrics == {"critic/pass@1": 0.5, "critic/pass@2": 1.0, "critic/zero_variance": 0.5}
    assert group_metrics([], []) == {}


def test_the_number_of_domains_with_metrics_is_bounded() -> None:
    groups = [GroupOutcome(f"d{number}", [1.0], [1], [True], True) for number in range(100)]
    metrics = group_metrics([*groups, GroupOutcome("d99", [0.0], [1], [False], True)], [])
    assert metrics["critic/rewards/d99/mean"] == 0.5
    assert sum(name.startswith("critic/rewards/") for name in metrics) == MOST_DOMAINS


async def test_a_job_records_them(tmp_path: Path) -> None:
    site = await finished(tmp_path, algorithm={"drop_zero_variance": True}, evaluation={"samples_per_prompt": 2})
    records = read_records(site.root)[1:]
    dropped = [record.metrics["rollout/dropped_groups/zero_variance"] for record in records]
    assert sum(dropped) > 0
    for record, count in zip(records, dropped, strict=True):
        assert record.metrics["critic/zero_variance"] == count / (count + record.metrics["rollout/kept_groups"])
        assert {"critic/pass@1", "critic/pass@2"} <= record.metrics.keys()
    names = {name for record in records for name in record.metrics}
    assert {"critic/rewards/odd/mean", "response_length/even/mean", "val/pass@2/mean"} <= names
