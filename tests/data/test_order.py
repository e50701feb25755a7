"""Rows are drawn in an order that is random, complete and always the same."""

from hypothesis import given
from hypothesis import strategies as st

from longboat_runtime.data.order import Cursor, Order, permutation


def test_order_of_a_seed_never_changes() -> None:
    assert permutation(7, 0, 10).tolist() == [6, 8, 0, 1, 4, 9, 5, 3, 2, 7]
    assert permutation(7, 1, 10).tolist() == [6, 5, 3, 2, 8, 0, 4, 9, 1, 7]
    assert permutation(8, 0, 10).tolist() == [9, 6, 1, 5, 7, 4, 3, 0, 8, 2]


@given(seed=st.integers(0, 2**40), rows=st.integers(1, 50), counts=st.lists(st.integers(0, 40), max_size=8))
def test_every_epoch_draws_every_row_once_however_draws_are_split(seed: int, rows: int, counts: list[int]) -> None:
    order = Order(rows, seed)
    cursor, drawn = Cursor(), []
    for count in counts:
        prompts, cursor = order.draw(cursor, count)
        assert len(prompts) == count
        drawn += prompts
    assert drawn == order.draw(Cursor(), sum(counts))[0]
    for epoch in range(len(drawn) // rows):
        assert sorted(drawn[epoch * rows : (epoch + 1) * rows]) == [(epoch, row) for row in range(rows)]


@given(rows=st.integers(1, 40), before=st.integers(0, 100), after=st.integers(0, 100))
def test_a_saved_cursor_continues_where_it_was(rows: int, before: int, after: int) -> None:
    order = Order(rows, seed=3)
    first, cursor = order.draw(Cursor(), before)
    kept = Cursor(cursor.epoch, cursor.position)
    assert first + order.draw(kept, after)[0] == order.draw(Cursor(), before + after)[0]


def test_without_shuffle_rows_come_as_they_stand() -> None:
    assert [prompt.row for prompt in Order(3, seed=5, shuffle=False).draw(Cursor(), 7)[0]] == [0, 1, 2, 0, 1, 2, 0]
