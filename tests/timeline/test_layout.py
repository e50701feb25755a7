from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from longboat_runtime.timeline.bars import Gap, Pool
from longboat_runtime.timeline.fold import fold
from longboat_runtime.timeline.layout import Axis, lanes, pool_name, stack, steps
from tests.timeline.history import long_round, numbered, short_round, start

MOMENTS = st.integers(0, 20)


@given(st.lists(st.tuples(MOMENTS, MOMENTS).map(sorted).map(tuple)))
def test_intervals_of_a_row_never_overlap(intervals: list[tuple[float, float]]) -> None:
    rows = stack(intervals)
    for row in set(rows):
        ends = [interval for other, interval in zip(rows, intervals, strict=True) if other == row]
        for one, other in pairwise(ends):
            assert one[1] <= other[0]


def test_rows_begin_at_the_top_once_nothing_runs() -> None:
    assert stack([(0, 1), (0, 2), (0, 3), (4, 5), (4, 6)]) == [0, 1, 2, 0, 1]


def test_engines_are_in_order_and_unfinished_samples_come_last() -> None:
    found = lanes(fold(numbered([*start(), *short_round(), *long_round()])).rounds)
    assert [(lane.engine, lane.rows, len(lane.bars)) for lane in found] == [
        ("e/0", 2, 2),
        ("e/2", 4, 4),
        ("e/10", 2, 2),
        (None, 7, 7),
    ]


def test_the_axis_leaves_out_the_time_without_a_driver() -> None:
    axis = Axis(10.0, (Gap(15.0, 115.0), Gap(120.0, 121.0)))
    assert [axis.at(time) for time in (10, 15, 60, 115, 118, 120.5, 130)] == [0, 5, 5, 5, 8, 10, 19]


def test_a_line_keeps_each_value_until_the_next_one() -> None:
    assert steps([(1, 5), (3, 7)], 9) == ([1, 3, 3, 9], [5, 5, 7, 7])
    assert steps([], 9) == ([], [])


def test_a_pool_s_name_tells_its_cpus_if_they_move() -> None:
    assert pool_name(Pool("code", ())) == "code"
    assert pool_name(Pool("code", (), ((0.0, 2.0), (5.0, 2.0)))) == "code (2 CPU)"
    assert pool_name(Pool("code", (), ((0.0, 2.0), (5.0, 0.5)))) == "code (0.5 to 2 CPU)"
