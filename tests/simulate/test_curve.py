from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longboat_runtime.rounds.measurements import StepTimes
from longboat_runtime.simulate.curve import StepCurve

observations = st.dictionaries(
    st.integers(1, 300),
    st.builds(StepTimes, st.integers(1, 1000), st.floats(1e-3, 100.0)),
    min_size=1,
    max_size=12,
)


@given(observations)
def test_more_sequences_never_take_less(observed: dict[int, StepTimes]) -> None:
    curve = StepCurve.from_observed(observed)
    seconds = [curve(batch) for batch in range(1, 400)]
    assert all(before <= after * (1 + 1e-9) for before, after in pairwise(seconds))


@given(observations)
def test_it_stays_within_what_was_observed(observed: dict[int, StepTimes]) -> None:
    curve, means = StepCurve.from_observed(observed), [times.seconds / times.steps for times in observed.values()]
    for batch in curve.batches:
        assert min(means) * (1 - 1e-9) <= curve(batch) <= max(means) * (1 + 1e-9)


def test_what_rises_is_met_and_joined_by_lines() -> None:
    curve = StepCurve.from_observed({1: StepTimes(10, 0.1), 3: StepTimes(5, 0.1), 7: StepTimes(1, 0.06)})
    assert [curve(batch) for batch in (1, 2, 3, 5, 7, 9)] == pytest.approx([0.01, 0.015, 0.02, 0.04, 0.06, 0.08])


def test_what_falls_is_pooled_by_steps() -> None:
    curve = StepCurve.from_observed({1: StepTimes(30, 3.0), 5: StepTimes(10, 0.6), 8: StepTimes(2, 0.6)})
    assert curve.seconds == pytest.approx((0.09, 0.3))
    assert curve.batches == (2, 8)


def test_steps_without_number_are_no_observation() -> None:
    with pytest.raises(ValueError, match="no step"):
        StepCurve.from_observed({4: StepTimes(0, 0.0)})
