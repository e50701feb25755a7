"""When shapes and promptOvercommit may change."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from longboat_runtime.driver.last_changes import LastChanges

# In each step: how many periods have ended since the one before; whether shapes or the factor would change; and how many periods ago the
# choice of the factor began.
STEPS = st.lists(st.tuples(st.integers(0, 2), st.booleans(), st.integers(0, 2)))


@given(STEPS)
def test_one_of_both_changes_in_a_period_and_neither_is_kept_from_it_without_need(
    steps: list[tuple[int, bool, int]],
) -> None:
    last, period, changed = LastChanges(), 0, list[tuple[int, bool]]()
    for passed, shapes, ago in steps:
        period += passed
        since = max(0, period - ago)
        if shapes:
            may = last.shapes_may_change(period)
            assert may is ((period, False) not in changed)
            last = last.with_shapes(period) if may else last
        else:
            may = last.overcommit_may_change(since)
            assert may is not any((of, True) in changed for of in range(since, period + 1))
            last = last.with_overcommit(period) if may else last
        changed += [(period, shapes)] if may else []
        assert LastChanges.from_snapshot(json.loads(json.dumps(last.to_snapshot()))) == last
    assert all(len({shapes for other, shapes in changed if other == of}) == 1 for of, _ in changed)
