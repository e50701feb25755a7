from __future__ import annotations

import math
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longboat_runtime.samples import SampleId
from longboat_runtime.weights.gate import (
    EPSILON,
    ParityExceeded,
    PublicationRefused,
    calibration_key,
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
    with pytest.raises(PublicationRefused, match=r"for 1 weights or buffers, among them lm_head\.weight"):
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


def test_a_refusal_names_the_tensors_that_are_furthest_from_the_published_ones() -> None:
    refusal = ParityExceeded("log-probs differ by 0.3", [SampleId(0, 1, 2, 3)])
    found = [("a", 1e-6), ("b", 0.4), ("c", 1.2), ("d", math.nan), ("e", 0.5), ("f", 0.02)]
    named = refusal.naming(found, "bfloat16")
    assert named.reason.startswith("log-probs differ by 0.3; 4 of 6 tensors")
    assert named.reason.endswith("furthest are d (nan), c (1.2), e (0.5)")
    assert named.lost == refusal.lost
    assert "all 1 tensors that could be compared" in refusal.naming([("a", 1e-6)], "float32").reason
    assert refusal.naming([], "float32").reason == refusal.reason, "nothing could be compared"


def test_engines_of_one_format_and_size_share_a_calibration() -> None:
    keys = {calibration_key(dtype, size) for dtype in ("bfloat16", "float16") for size in (1, 2)}
    assert len(keys) == 4
    assert calibration_key("bfloat16", 2) == calibration_key("bfloat16", 2)
