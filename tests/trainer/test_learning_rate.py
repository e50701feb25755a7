import pytest

from longboat_crds.trainer import OptimizerSpec, Schedule
from longboat_runtime.trainer.optimizer import learning_rate


def course(schedule: Schedule, steps: int = 10, warmup: int = 0) -> list[float]:
    spec = OptimizerSpec(learning_rate=1.0, warmup_steps=warmup, schedule=schedule)
    return [learning_rate(spec, step, steps) for step in range(1, steps + 1)]


def test_constant() -> None:
    assert course(Schedule.CONSTANT) == [1.0] * 10


def test_warm_up_rises_to_the_full_rate() -> None:
    assert course(Schedule.CONSTANT, steps=5, warmup=4) == [0.25, 0.5, 0.75, 1.0, 1.0]


def test_linear_falls_from_the_full_rate_towards_zero() -> None:
    assert course(Schedule.LINEAR, steps=4) == [1.0, 0.75, 0.5, 0.25]


def test_cosine_falls_from_the_full_rate_towards_zero() -> None:
    rates = course(Schedule.COSINE, steps=10)
    assert rates[0] == 1.0
    assert rates == sorted(rates, reverse=True)
    assert rates[5] == pytest.approx(0.5)
    assert 0 < rates[-1] < 0.03


@pytest.mark.parametrize("schedule", Schedule)
def test_beyond_the_last_step_it_is_never_negative(schedule: Schedule) -> None:
    spec = OptimizerSpec(learning_rate=1.0, schedule=schedule)
    assert learning_rate(spec, 12, 10) >= 0
