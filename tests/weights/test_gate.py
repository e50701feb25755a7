from __future__ import annotations

import math
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longboat_runtime.samples import SampleId
from longboat_runtime.weights.gate import (
    EPSILON,
    PublicationRefused,
    check_parity,
    check_receipts,
    parity,
    parity_bound,
)


def test_receipts_must_show_the_published_checksum_and_every_parameter() -> None:
    good = {"checksum": "c", "missing": []}
    check_receipts([good, good], "c")
    with pytest.raises(PublicationRefused, match="worker 1 received weights of checksum d"):
        check_receipts([good, {"checksum": "d", "missing": []}], "c")
    with pytest.raises(PublicationRefused, match=r"for 1 parameters, among them lm_head\.weight"):
        check_receipts([{"checksum": "c", "missing": ["lm_head.weight"]}], "c")


def test_parity_is_the_largest_difference() -> None:
    assert parity([-1.0, -2.0], [-1.5, -2.25]) == 0.5
    assert parity([math.nan], [-1.0]) == math.inf
    with pytest.raises(ValueError, match="1 log-probs"):
        parity([-1.0], [-1.0, -2.0])


def test_float32_has_one_bound() -> None:
    check_parity(1e-4, "float32", None)
    for calibrated in (None, 1.0):
        with pytest.raises(PublicationRefused):
            check_parity(1.01e-4, "float32", calibrated)


def test_not_a_number_never_passes() -> None:
    for measured in (math.nan, math.inf):
        with pytest.raises(PublicationRefused):
            check_parity(measured, "bfloat16", None)


@given(st.sampled_from(sorted(EPSILON)), st.floats(0, 10))
def test_half_precision_bounds_follow_the_calibration_within_limits(dtype: str, calibrated: float) -> None:
    bound = parity_bound(dtype, calibrated)
    assert 4 * EPSILON[dtype] <= bound <= 128 * EPSILON[dtype] == parity_bound(dtype, None)
    if 2 * EPSILON[dtype] <= calibrated <= 40 * EPSILON[dtype]:
        assert bound == 3 * calibrated


def test_a_refusal_survives_pickling() -> None:
    refusal = pickle.loads(pickle.dumps(PublicationRefused("why", [SampleId(0, 1, 2, 3)])))  # noqa: S301 - our own
    assert (refusal.reason, refusal.lost) == ("why", (SampleId(0, 1, 2, 3),))
