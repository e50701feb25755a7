from __future__ import annotations

import pytest

from longboat_runtime.rollout.step_times import StepClock, StepTimes


def test_steps_follow_each_other_from_the_begin_to_the_rest() -> None:
    clock = StepClock()
    clock.step(1.0, 1, more=False)
    assert clock.times == {}, "nobody knows when it began"
    clock.begin(10.0)
    for now, batch in ((10.5, 3), (11.0, 3), (11.25, 2)):
        clock.step(now, batch, more=True)
    clock.step(11.5, 2, more=False)
    clock.begin(20.0)
    clock.step(20.125, 1, more=True)
    assert clock.times == {3: StepTimes(2, 1.0), 2: StepTimes(2, 0.5), 1: StepTimes(1, 0.125)}


def test_an_interruption_is_no_step() -> None:
    clock = StepClock()
    clock.begin(0.0)
    clock.step(1.0, 1, more=True)
    clock.interrupt()
    clock.step(60.0, 1, more=True)
    clock.step(61.0, 1, more=True)
    assert clock.times[1] == StepTimes(2, pytest.approx(2.0))


def test_a_step_that_drew_nothing_is_not_counted() -> None:
    clock = StepClock()
    clock.begin(0.0)
    clock.step(1.0, 0, more=True)
    clock.step(1.5, 4, more=False)
    assert clock.times == {4: StepTimes(1, 0.5)}
