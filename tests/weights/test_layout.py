from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from longboat_runtime.weights.bucket import BUCKET_BYTES
from longboat_runtime.weights.layout import (
    BUCKETS_PER_SENDER,
    LEAST_BUCKET_BYTES,
    TensorKind,
    aligned,
    bucket_limit,
    lay_out,
    sender_ranks,
)

kinds = st.builds(lambda n: TensorKind(f"t{n}", "uint8", (n,), n), st.integers(0, 3000))
units = st.lists(st.lists(kinds, min_size=1, max_size=3), min_size=1, max_size=40)


@given(units, st.integers(1, 5), st.integers(64, 10_000))
def test_every_tensor_travels_once_in_order_whole_and_beside_no_other(
    units: list[list[TensorKind]], senders: int, limit: int
) -> None:
    layout = lay_out(units, senders, limit)
    names = [(entry.name, entry.shape, entry.nbytes) for bucket in layout for entry in bucket.entries]
    assert names == [(kind.name, kind.shape, kind.nbytes) for unit in units for kind in unit]
    assert [number for bucket in layout for number in bucket.units] == list(range(len(units)))
    for bucket in layout:
        ends = [0, *(entry.offset + aligned(entry.nbytes) for entry in bucket.entries)]
        assert [entry.offset for entry in bucket.entries] == ends[:-1]
        assert bucket.nbytes == ends[-1]
        assert bucket.nbytes <= limit or len(bucket.units) == 1


@given(units, st.integers(1, 5), st.integers(64, 10_000))
def test_senders_have_equal_shares_up_to_a_bucket(units: list[list[TensorKind]], senders: int, limit: int) -> None:
    layout = lay_out(units, senders, limit)
    loads = [sum(bucket.nbytes for bucket in layout if bucket.sender == sender) for sender in range(senders)]
    assert max(loads) - min(loads) <= max(bucket.nbytes for bucket in layout)


def test_the_order_of_tensors_is_the_same_for_any_number_of_senders() -> None:
    units = [[TensorKind(f"t{n}", "uint8", (100 * n,), 100 * n)] for n in range(30)]
    orders = {
        tuple(entry.name for bucket in lay_out(units, senders, limit) for entry in bucket.entries)
        for senders in (1, 2, 3)
        for limit in (None, 500)
    }
    assert len(orders) == 1


@given(st.integers(0, 2**43), st.integers(1, 64))
def test_buckets_are_as_large_as_an_even_share_allows(total: int, senders: int) -> None:
    limit = bucket_limit(total, senders)
    assert LEAST_BUCKET_BYTES <= limit <= BUCKET_BYTES
    if LEAST_BUCKET_BYTES < limit < BUCKET_BYTES:
        assert abs(limit * BUCKETS_PER_SENDER * senders - total) < BUCKETS_PER_SENDER * senders


def test_the_first_rank_of_each_pod_sends() -> None:
    assert sender_ranks(1, 1) == [0]
    assert sender_ranks(3, 1) == [0, 1, 2]
    assert sender_ranks(8, 4) == [0, 4]
