from collections.abc import Callable
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longboat_runtime.trainer.packing import (
    SegmentTooLong,
    best_fit_decreasing,
    load,
    pack,
    pad,
    padded,
    split,
)

# How bins are filled, and what a bin holds.
FILLS = [pytest.param(pack, load, id="packed"), pytest.param(pad, padded, id="padded")]
sizes = st.lists(st.integers(1, 100), max_size=60)


@pytest.mark.parametrize(("fill", "held"), FILLS)
@given(sizes, st.integers(100, 300), st.integers(1, 5))
def test_every_sample_is_in_one_bin_of_one_rank_and_no_bin_overflows(
    fill: Callable, held: Callable, tokens: list[int], capacity: int, ranks: int
) -> None:
    bins = fill(tokens, capacity, ranks)
    members = [position for of_rank in bins for bin_ in of_rank for position in bin_]
    assert sorted(members) == list(range(len(tokens)))
    assert all(held(bin_, tokens) <= capacity for of_rank in bins for bin_ in of_rank)


@pytest.mark.parametrize("fill", [pack, pad])
@given(sizes, st.integers(100, 300), st.integers(1, 5))
def test_all_ranks_run_equally_many_bins_and_at_least_one(
    fill: Callable, tokens: list[int], capacity: int, ranks: int
) -> None:
    bins = fill(tokens, capacity, ranks)
    assert len(bins) == ranks
    assert len({len(of_rank) for of_rank in bins}) == 1
    assert len(bins[0]) >= 1


@pytest.mark.parametrize("fill", [pack, pad])
@given(sizes, st.integers(100, 300))
def test_a_bin_holds_the_longest_samples_first(fill: Callable, tokens: list[int], capacity: int) -> None:
    for members in fill(tokens, capacity, 1)[0]:
        lengths = [tokens[position] for position in members]
        assert lengths == sorted(lengths, reverse=True)


@given(sizes, st.integers(100, 300))
def test_no_two_bins_could_have_been_one(tokens: list[int], capacity: int) -> None:
    bins = sorted(load(bin_, tokens) for bin_ in best_fit_decreasing(tokens, capacity))
    assert len(bins) < 2 or bins[0] + bins[1] > capacity


@given(st.lists(st.integers(1, 10), min_size=40, max_size=80), st.integers(2, 4))
def test_ranks_get_about_equal_work(tokens: list[int], ranks: int) -> None:
    loads = [sum(load(bin_, tokens) for bin_ in of_rank) for of_rank in pack(tokens, 10_000, ranks)]
    assert max(loads) - min(loads) <= 10


@given(st.lists(st.integers(1, 9), min_size=1, max_size=6), st.integers(9, 20))
def test_no_other_way_needs_fewer_padded_bins(tokens: list[int], capacity: int) -> None:
    def fewest(left: tuple[int, ...]) -> int:
        """By trying every bin that holds the first of those left."""
        if not left:
            return 0
        first, *others = left
        choices = [
            (first, *some)
            for count in range(len(others) + 1)
            for some in combinations(others, count)
            if padded((first, *some), tokens) <= capacity
        ]
        return 1 + min(fewest(tuple(i for i in left if i not in chosen)) for chosen in choices)

    assert len(pad(tokens, capacity, 1)[0]) == fewest(tuple(range(len(tokens))))


def test_padded_bins_are_as_even_as_their_number_allows() -> None:
    tokens = [10] * 12
    assert [[padded(bin_, tokens) for bin_ in of_rank] for of_rank in pad(tokens, 50, 2)] == [[30, 30], [30, 30]]


def test_bins_of_one_moment_are_of_similar_size() -> None:
    bins = pack([90, 80, 50, 40, 30, 20], 100, 2)
    pairs = zip(*[[load(bin_, [90, 80, 50, 40, 30, 20]) for bin_ in of_rank] for of_rank in bins], strict=True)
    assert all(abs(first - second) <= 20 for first, second in pairs)


@pytest.mark.parametrize("fill", [pack, pad])
def test_a_sample_longer_than_a_bin_is_refused(fill: Callable) -> None:
    with pytest.raises(SegmentTooLong, match="segment 1 has 101 tokens, a bin holds 100"):
        fill([1, 101], 100, 1)


@given(st.integers(0, 100), st.integers(1, 10))
def test_runs_differ_by_one_at_most(count: int, parts: int) -> None:
    runs = split(count, parts)
    assert [position for run in runs for position in run] == list(range(count))
    assert max(map(len, runs)) - min(map(len, runs)) <= 1
