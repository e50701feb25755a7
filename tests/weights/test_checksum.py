from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from longboat_runtime.weights.checksum import checksum_of, tensor_digest

Tensor = tuple[str, str, tuple[int, ...], np.ndarray]

tensors = st.lists(
    st.tuples(
        st.text(max_size=8),
        st.sampled_from(["float32", "bfloat16"]),
        st.lists(st.integers(0, 9), max_size=3).map(tuple),
        npst.arrays(np.uint8, st.integers(0, 16)),
    ),
    max_size=4,
)


def checksum(fed: list[Tensor]) -> str:
    return checksum_of(tensor_digest(*tensor) for tensor in fed)


def key(fed: list[Tensor]) -> list[tuple[str, str, tuple[int, ...], bytes]]:
    return [(name, dtype, shape, data.tobytes()) for name, dtype, shape, data in fed]


@given(tensors, tensors)
def test_equal_exactly_for_equal_sequences(one: list[Tensor], other: list[Tensor]) -> None:
    assert (checksum(one) == checksum(other)) == (key(one) == key(other))


def test_each_part_counts() -> None:
    data = np.arange(8, dtype=np.uint8)
    base: Tensor = ("w", "float32", (2,), data)
    damaged = data.copy()
    damaged[3] ^= 1
    others: list[list[Tensor]] = [
        [("v", *base[1:])],
        [("w", "int32", (2,), data)],
        [("w", "float32", (1, 2), data)],
        [("w", "float32", (2,), damaged)],
        [base, base],
        [],
    ]
    assert len({checksum(fed) for fed in [[base], *others]}) == len(others) + 1
