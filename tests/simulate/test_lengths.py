from __future__ import annotations

from statistics import median

import numpy as np
import pytest

from longboat_runtime.rounds.audit.first_launches import complete
from longboat_runtime.rounds.audit.lengths import PromptLengths
from longboat_runtime.samples import PromptId, SampleId
from longboat_runtime.simulate.lengths import FirstLaunchDistribution, LengthDistribution, TwoLevel
from tests.rounds.audit.racing import LONGEST, MEDIAN, PROMPT_SIGMA, SAMPLE_SIGMA, Racing, play


def group(distribution: LengthDistribution, row: int, attempt: int = 0, size: int = 8) -> list[int]:
    return [distribution(SampleId(0, row, attempt, index)) for index in range(size)]


def test_two_levels_have_the_median_and_spreads_they_are_told() -> None:
    distribution = TwoLevel(MEDIAN, PROMPT_SIGMA, SAMPLE_SIGMA, 10**9)
    logs = np.log([group(distribution, row) for row in range(2000)])
    assert np.exp(np.median(logs)) == pytest.approx(MEDIAN, rel=0.1)
    assert logs.std(axis=1, ddof=1).mean() == pytest.approx(SAMPLE_SIGMA, rel=0.1)
    assert logs.std() == pytest.approx(np.hypot(PROMPT_SIGMA, SAMPLE_SIGMA), rel=0.1)


def test_no_response_is_longer_than_the_limit_or_empty() -> None:
    lengths = [length for row in range(200) for length in group(TwoLevel(3, 2, 2, 50), row)]
    assert (min(lengths), max(lengths)) == (1, 50)


def test_a_prompt_keeps_its_effect_and_draws_its_responses_again() -> None:
    distribution = TwoLevel(500, 3.0, 0.1, 10**9)
    for row in range(10):
        first, second = group(distribution, row), group(distribution, row, attempt=1)
        assert first != second
        assert median(first) == pytest.approx(median(second), rel=0.5)


def test_a_group_is_one_that_was_launched() -> None:
    prompts = [PromptLengths("math", tuple(range(start, start + 40, 5)), (), (), ()) for start in (10, 100, 1000)]
    distribution = FirstLaunchDistribution.from_launches(complete(prompts, 2000), group_size=8)
    groups = {tuple(sorted(group(distribution, row))) for row in range(50)}
    assert groups == {prompt.finished for prompt in prompts}
    distribution = FirstLaunchDistribution.from_launches(complete(prompts, 2000), 8, numbers={PromptId(0, 7): 2})
    assert tuple(sorted(group(distribution, 7))) == prompts[2].finished


def test_groups_of_one_are_launched_again_as_they_were() -> None:
    prompts = [PromptLengths("math", (length,), (), (), ()) for length in (10, 100, 1000)]
    distribution = FirstLaunchDistribution.from_launches(
        complete(prompts, 2000), 1, numbers={PromptId(0, row): row for row in range(3)}
    )
    assert [group(distribution, row, 1, size=1) for row in range(3)] == [[10], [100], [1000]]


def test_a_prompt_that_was_long_by_chance_is_shorter_the_next_time() -> None:
    """Of the longest groups of a window, the mean longest response when they are launched again."""
    truth = TwoLevel(MEDIAN, PROMPT_SIGMA, SAMPLE_SIGMA, LONGEST)
    prompts = [PromptLengths("math", tuple(group(truth, row)), (), (), ()) for row in range(600)]
    distribution = FirstLaunchDistribution.from_launches(
        complete(prompts, LONGEST), 8, numbers={PromptId(0, row): row for row in range(600)}
    )
    longest = sorted(range(600), key=lambda row: max(group(truth, row)))[-100:]
    found, wanted, before = (
        np.mean([max(group(of, row, attempt)) for row in longest])
        for of, attempt in ((distribution, 1), (truth, 1), (truth, 0))
    )
    assert found == pytest.approx(wanted, rel=0.15)
    assert found < 0.95 * before


@pytest.mark.parametrize("overcommit", [1.125, 1.25, 1.5])
def test_censored_windows_give_the_law_that_made_them(overcommit: float) -> None:
    """Longest responses of a group decide how long a round is: their distribution must come back, tails included."""
    window = play(Racing(prompt_overcommit=overcommit), 8, np.random.default_rng(5)).prompts()
    distribution = FirstLaunchDistribution.from_launches(complete(window, LONGEST), group_size=8)
    truth = TwoLevel(MEDIAN, PROMPT_SIGMA, SAMPLE_SIGMA, LONGEST)
    found, wanted = ([max(group(of, row)) for row in range(3000)] for of in (distribution, truth))
    for share in (0.5, 0.8, 0.95):
        assert np.quantile(found, share) == pytest.approx(np.quantile(wanted, share), rel=0.25)
