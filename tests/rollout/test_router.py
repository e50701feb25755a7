from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longboat_runtime.rollout.router import IMBALANCE, Router
from longboat_runtime.samples import SampleId


def group(row: int, size: int = 8) -> list[SampleId]:
    return [SampleId(0, row, 0, index) for index in range(size)]


def router(*engines: str) -> Router:
    made = Router()
    for engine in engines:
        made.add(engine)
    return made


def test_a_group_goes_to_one_engine() -> None:
    routed = router("a", "b").route(group(1) + group(2))
    assert routed == {"a": group(1), "b": group(2)}


def test_the_emptiest_engine_gets_the_next_prompt() -> None:
    balanced = router("a", "b")
    balanced.route(group(1, 8))
    balanced.route(group(2, 3))
    assert balanced.route(group(3, 2)) == {"b": group(3, 2)}


def test_a_large_group_spills_over_at_the_bound() -> None:
    routed = router("a", "b").route(group(1, 4 * IMBALANCE))
    counts = {engine: len(ids) for engine, ids in routed.items()}
    assert abs(counts["a"] - counts["b"]) <= IMBALANCE


def test_a_drained_engine_gets_nothing_new_and_keeps_what_runs() -> None:
    drained = router("a", "b")
    drained.route(group(1))
    drained.drain("a")
    assert drained.route(group(1, 12)[8:] + group(2)) == {"b": group(1, 12)[8:] + group(2)}
    assert drained.running("a") == group(1)
    drained.add("a")
    assert drained.open == ["a", "b"]


def test_without_an_open_engine_nothing_is_routed() -> None:
    with pytest.raises(LookupError):
        router().route(group(1))


def test_late_and_doubled_reports_are_told_apart() -> None:
    one = router("a", "b")
    one.route(group(1, 1))
    (sample,) = group(1, 1)
    assert not one.finished("b", sample)
    assert one.finished("a", sample)
    assert not one.finished("a", sample)


def test_removing_an_engine_names_what_ran_there() -> None:
    one = router("a", "b")
    one.route(group(1) + group(2))
    assert one.remove("a") == group(1)
    assert one.engines_of(group(1) + group(2)) == {"b": group(2)}


@given(
    st.lists(st.tuples(st.integers(0, 5), st.integers(1, 40)), max_size=20),
    st.integers(1, 5),
)
def test_every_sample_runs_in_exactly_one_engine_and_loads_stay_near(
    groups: list[tuple[int, int]], engines: int
) -> None:
    one = router(*(f"e{i}" for i in range(engines)))
    routed: Counter[SampleId] = Counter()
    next_index: Counter[int] = Counter()
    for row, size in groups:
        samples = [SampleId(0, row, 0, next_index[row] + i) for i in range(size)]
        next_index[row] += size
        for ids in one.route(samples).values():
            routed.update(ids)
        loads = [len(one.running(f"e{i}")) for i in range(engines)]
        assert max(loads) - min(loads) <= IMBALANCE
    assert all(count == 1 for count in routed.values())
    assert routed.keys() == {SampleId(0, row, 0, i) for row, count in next_index.items() for i in range(count)}
