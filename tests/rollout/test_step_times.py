from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longboat_runtime.rollout.step_times import StepClock, merged, rounded
from longboat_runtime.rounds.measurements import StepTimes


def test_steps_follow_each_other_from_the_begin_to_the_rest() -> None:
    clock = StepClock()
    assert clock.step(1.0, 1, more=False) == {}, "nobody knows when it began"
    clock.begin(10.0)
    steps = [clock.step(now, batch, more=True) for now, batch in ((10.5, 3), (11.0, 3), (11.25, 2))]
    steps.append(clock.step(11.5, 2, more=False))
    clock.begin(20.0)
    steps.append(clock.step(20.125, 1, more=True))
    assert merged(steps) == {3: StepTimes(2, 1.0), 2: StepTimes(2, 0.5), 1: StepTimes(1, 0.125)}


def test_an_interruption_is_no_step() -> None:
    clock = StepClock()
    clock.begin(0.0)
    assert clock.step(1.0, 1, more=True) == {1: StepTimes(1, 1.0)}
    clock.interrupt()
    assert clock.step(60.0, 1, more=True) == {}
    assert clock.step(61.0, 1, more=True) == {1: StepTimes(1, 1.0)}


def test_a_step_that_drew_nothing_is_not_counted() -> None:
    clock = StepClock()
    clock.begin(0.0)
    assert clock.step(1.0, 0, more=True) == {}
    assert clock.step(1.5, 4, more=False) == {4: StepTimes(1, 0.5)}


@given(batch=st.integers(1, 4096))
def test_batch_sizes_are_rounded_by_a_fifth_at_most(batch: int) -> None:
    assert batch / 1.2 <= rounded(batch) <= batch * 1.2
    assert rounded(rounded(batch)) == rounded(batch)


def test_there_are_few_rounded_sizes() -> None:
    assert [*dict.fromkeys(map(rounded, range(1, 33)))] == [1, 2, 3, 4, 6, 8, 11, 16, 23, 32]


def test_observations_of_engines_are_added_up() -> None:
    found = merged([{1: StepTimes(1, 0.1)}, {1: StepTimes(2, 0.3), 2: StepTimes(1, 1.0)}])
    assert found == {1: StepTimes(3, pytest.approx(0.4)), 2: StepTimes(1, 1.0)}
