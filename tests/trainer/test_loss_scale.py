"""The loss scale of Float16: when it is halved and doubled, and when a minibatch is skipped."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longboat_crds.model import DType
from longboat_runtime.trainer.loss_scale import FIRST_SCALE, GOOD_UPDATES, LARGEST_SCALE, MAX_HALVINGS, LossScale


def after(scale: LossScale, largest: float) -> LossScale:
    """After a minibatch whose gradient overflows at any scale above `largest`."""
    for tried in scale.attempts():
        if tried.value <= largest:
            return tried.after_update()
    return scale.after_skip()


exponents = st.integers(-20, 24)


@given(exponent=exponents, good=st.integers(0, GOOD_UPDATES - 1))
def test_a_minibatch_is_tried_at_the_scale_and_at_most_ten_halves_of_it(exponent: int, good: int) -> None:
    tried = [one.value for one in LossScale(2.0**exponent, good).attempts()]
    assert tried == [2.0 ** (exponent - halvings) for halvings in range(MAX_HALVINGS + 1)]


@given(exponent=exponents, good=st.integers(0, GOOD_UPDATES - 1))
def test_a_skipped_minibatch_leaves_the_scale_but_ends_the_row_of_good_updates(exponent: int, good: int) -> None:
    assert after(LossScale(2.0**exponent, good), largest=0.0) == LossScale(2.0**exponent, 0)


@given(exponent=exponents, lower=st.integers(1, MAX_HALVINGS), good=st.integers(0, GOOD_UPDATES - 1))
def test_an_update_after_halvings_keeps_the_lower_scale_and_is_the_first_of_its_row(
    exponent: int, lower: int, good: int
) -> None:
    largest = 2.0 ** (exponent - lower)
    assert after(LossScale(2.0**exponent, good), largest) == LossScale(largest, 1)


@given(exponent=st.integers(-20, 23))
def test_the_scale_doubles_after_so_many_good_updates_and_not_before(exponent: int) -> None:
    scale = LossScale(2.0**exponent)
    for _ in range(GOOD_UPDATES - 1):
        scale = scale.after_update()
        assert scale.value == 2.0**exponent
    assert scale.after_update() == LossScale(2.0 ** (exponent + 1), 0)


@given(st.lists(st.one_of(st.just(0.0), exponents.map(lambda e: 2.0**e), st.just(float("inf"))), max_size=400))
def test_the_scale_stays_a_power_of_two_within_its_bounds_whatever_comes(largest: list[float]) -> None:
    scale = LossScale.from_dtype(DType.FLOAT16)
    assert scale.value == FIRST_SCALE
    for one in largest:
        before, scale = scale, after(scale, one)
        assert 0 <= scale.good_updates < GOOD_UPDATES
        assert 2.0**-20 / 2.0**MAX_HALVINGS <= scale.value <= LARGEST_SCALE
        assert scale.value.hex().startswith("0x1.0000000000000p")
        assert before.value / 2.0**MAX_HALVINGS <= scale.value <= before.value * 2.0


def test_a_scale_at_the_bound_is_not_raised() -> None:
    assert LossScale(LARGEST_SCALE, GOOD_UPDATES - 1).after_update() == LossScale(LARGEST_SCALE, 0)


@pytest.mark.parametrize("dtype", [DType.FLOAT32, DType.BFLOAT16])
def test_other_formats_have_no_scale_and_are_tried_once(dtype: DType) -> None:
    scale = LossScale.from_dtype(dtype)
    assert list(scale.attempts()) == [scale]
    for _ in range(GOOD_UPDATES + 1):
        scale = scale.after_update()
    assert scale.after_skip() == LossScale.from_dtype(dtype)
    assert scale.value == 1.0
