"""How CPUs are divided over reward pools."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from longboat_crds.status import LINE_LENGTH
from longboat_runtime.reward.cpus import (
    LEAST_GAIN,
    LEAST_GAIN_SECONDS,
    LEAST_MOVE,
    GradeCost,
    PoolLoad,
    PoolNeed,
    differs,
    divide,
)

NAMES = [f"p{i}" for i in range(8)]
costs = st.none() | st.floats(0.0, 100.0)


@st.composite
def needs_of(draw: st.DrawFn) -> PoolNeed:
    least = draw(st.integers(1, 3000))
    return PoolNeed(
        asked=draw(st.integers(0, 5) | st.integers(0, 5000)),
        expected=draw(st.floats(0.0, 5000.0)),
        cpu_seconds=draw(costs),
        processes=draw(st.integers(1, 64)),
        least=least,
        most=draw(st.integers(least, 64_000)),
        queue_seconds=draw(st.floats(0.0, 1e4)),
    )


@st.composite
def situations(draw: st.DrawFn) -> tuple[int, dict[str, PoolNeed], dict[str, int]]:
    """A total, what pools need, and what they had, which may be out of all bounds: the spec may have been edited."""
    needs = draw(st.dictionaries(st.sampled_from(NAMES), needs_of(), min_size=1))
    total = draw(st.integers(sum(need.least for need in needs.values()), 64_000))
    before = draw(st.dictionaries(st.sampled_from(NAMES), st.integers(0, 64_000)))
    return total, needs, before


@st.composite
def granted(draw: st.DrawFn) -> tuple[int, dict[str, PoolNeed], dict[str, int]]:
    """The same, where what pools had was granted under the same bounds."""
    total, needs, before = draw(situations())
    return total, needs, dict(divide(total, needs, before).pools)


@given(situations())
def test_the_asks_fit_into_the_total_and_within_bounds(
    situation: tuple[int, dict[str, PoolNeed], dict[str, int]],
) -> None:
    total, needs, before = situation
    division = divide(total, needs, before)
    assert division.pools.keys() == division.reasons.keys() == needs.keys()
    assert sum(division.pools.values()) <= total
    assert all(need.least <= division.pools[name] <= need.most for name, need in needs.items())
    assert divide(total, dict(reversed(needs.items())), before).pools == division.pools
    assert all(0 < len(reason) <= LINE_LENGTH for reason in division.reasons.values())


@given(granted())
def test_cpu_leaves_a_pool_only_for_another_that_waits_for_it(
    situation: tuple[int, dict[str, PoolNeed], dict[str, int]],
) -> None:
    total, needs, before = situation
    after = divide(total, needs, before).pools
    losers = [name for name in needs if after[name] < before[name]]
    gainers = [name for name in needs if after[name] > before[name]]
    assert all(needs[name].usable > before[name] for name in gainers), "it could use more this moment"
    assert bool(gainers) >= bool(losers)
    lost, gained = (sum(abs(after[name] - before[name]) for name in names) for names in (losers, gainers))
    assert lost == max(0, gained - (total - sum(before.values()))), "what nobody has is taken first"


@given(granted(), st.data())
def test_no_cpu_moves_while_nobody_has_anything_to_grade(
    situation: tuple[int, dict[str, PoolNeed], dict[str, int]], data: st.DataObject
) -> None:
    total, needs, before = situation
    idle = {name: replace(need, asked=0) for name, need in needs.items()}
    assert divide(total, idle, before).pools == before


@given(granted())
def test_small_changes_are_not_asked_for(situation: tuple[int, dict[str, PoolNeed], dict[str, int]]) -> None:
    total, needs, before = situation
    after = divide(total, needs, before).pools
    assert all(after[name] == before[name] or abs(after[name] - before[name]) >= LEAST_MOVE for name in needs)
    assert not differs(before, {**before, NAMES[0]: before.get(NAMES[0], 0) + LEAST_MOVE - 1})


@given(situations())
def test_a_constant_load_leads_to_a_division_that_stays(
    situation: tuple[int, dict[str, PoolNeed], dict[str, int]],
) -> None:
    total, needs, before = situation
    for _ in needs:
        before = dict(divide(total, needs, before).pools)
    assert divide(total, needs, before).pools == before


@given(granted())
def test_what_a_pool_is_given_lets_it_be_done_noticeably_sooner(
    situation: tuple[int, dict[str, PoolNeed], dict[str, int]],
) -> None:
    """Also where it gets less than it could use, since others have little to give."""
    total, needs, before = situation
    after = divide(total, needs, before).pools
    for name, need in needs.items():
        if after[name] > before[name] and need.cpu_seconds is not None:
            work = 1000 * (need.asked + need.expected) * need.cpu_seconds
            slow, fast = (work / min(cpus[name], need.usable_in_round) for cpus in (before, after))
            assert slow - fast >= max(LEAST_GAIN_SECONDS, LEAST_GAIN * slow) * (1 - 1e-9)


def test_a_part_of_what_a_pool_could_use_is_not_moved_if_that_alone_brings_little() -> None:
    idle = PoolNeed(asked=0, expected=0, cpu_seconds=1.0, processes=64, least=100, most=64_000)
    needs = {"code": replace(idle, asked=100), **dict.fromkeys(NAMES[:7], idle)}
    before = {"code": 10_000, **dict.fromkeys(NAMES[:6], 340), NAMES[6]: 360}
    # Six pools have 10m too little to spare, so that 260m of 1700m are left.
    assert divide(12_400, needs, before).pools == before


@given(granted())
def test_the_pool_that_is_done_last_is_never_done_later(
    situation: tuple[int, dict[str, PoolNeed], dict[str, int]],
) -> None:
    """Up to the millicore by which a share is rounded."""
    total, needs, before = situation
    known = {name: replace(need, cpu_seconds=need.cpu_seconds or 0.0) for name, need in needs.items()}
    after = divide(total, known, before).pools

    def seconds(name: str, cpu: int) -> float:
        need = known[name]
        return (need.asked + need.expected) * (need.cpu_seconds or 0.0) / min(cpu, need.usable_in_round)

    last = max(seconds(name, before[name]) for name in known)
    assert all(seconds(name, after[name] + 1) <= last * (1 + 1e-9) for name in known)


def test_work_too_small_for_a_number_is_none() -> None:
    """Half of the smallest number there is rounds to 0."""
    need = PoolNeed(asked=0, expected=5e-324, cpu_seconds=0.0, processes=1, least=1, most=2)
    assert divide(1, {"code": need}, {"code": 1}).pools == {"code": 1}


def need(asked: int, cpu_seconds: float = 1.0, expected: float = 0.0, **more: int) -> PoolNeed:
    bounds = {"processes": 16, "least": 100, "most": 16_000, **more}
    return PoolNeed(asked, expected, cpu_seconds, **bounds)


def test_pools_that_wait_get_cpus_in_proportion_to_their_work() -> None:
    needs = {"code": need(300), "math": need(1000, 0.1)}
    assert divide(4000, needs, {"code": 2000, "math": 2000}).pools == {"code": 3000, "math": 1000}


def test_what_is_still_to_come_counts_as_what_has_come() -> None:
    before = {"code": 2000, "math": 2000}
    assert divide(4000, {"code": need(100), "math": need(10)}, before).pools["code"] > 3000
    needs = {"code": need(100), "math": need(10, 1.0, expected=290)}
    assert divide(4000, needs, before).pools == {"code": 1000, "math": 3000}


def test_a_pool_gets_no_more_than_it_has_grades_to_run() -> None:
    """Three grades run on three CPUs, however long they take; the rest stays where it is."""
    needs = {"code": need(3, 100.0), "math": need(0)}
    assert divide(8000, needs, {"code": 1000, "math": 7000}).pools == {"code": 3000, "math": 5000}


def test_what_no_pool_has_is_taken_first() -> None:
    needs = {"code": need(100), "math": need(0)}
    assert divide(8000, needs, {"code": 1000, "math": 3000}).pools == {"code": 7900, "math": 100}
    assert divide(8000, {**needs, "code": need(4)}, {"code": 1000, "math": 3000}).pools == {"code": 4000, "math": 3000}


@pytest.mark.parametrize(
    ("code", "math"),
    [
        (need(2, 0.1), need(0)),  # done in 0.2 s
        (need(1000, 0.5), need(1000, 0.48)),  # 2 % sooner
    ],
)
def test_a_move_that_brings_little_is_not_asked_for(code: PoolNeed, math: PoolNeed) -> None:
    before = {"code": 2000, "math": 2000}
    assert divide(4000, {"code": code, "math": math}, before).pools == before


def test_reasons_can_be_read() -> None:
    division = divide(4000, {"code": need(300), "math": need(0)}, {"code": 2000, "math": 2000})
    assert division.reason == "code gets 1900m from math"
    assert division.reasons == {
        "code": "300 grades of 1 CPU s to do, 0 to come: 77 s of work instead of 150 s",
        "math": "nothing to do: 0 s of work with what it leaves to code",
    }
    waits = replace(need(300), queue_seconds=12.3)
    division = divide(4000, {"code": waits, "math": need(0)}, {"code": 3900, "math": 100})
    assert division.reason == "no pool waits for CPUs that another has too many of"
    assert division.reasons["code"] == "300 grades of 1 CPU s to do, the first for 12 s, 0 to come: 77 s of work"


@given(st.lists(st.tuples(st.integers(0, 300), st.floats(0.0, 10.0)), max_size=20))
def test_the_cost_of_a_grade_lies_between_those_seen(seen: list[tuple[int, float]]) -> None:
    cost = GradeCost()
    assert cost.mean is None
    assume(any(grades for grades, _ in seen))
    for grades, each in seen:
        cost.learn(grades, grades * each)
    known = [each for grades, each in seen if grades]
    assert min(known) * (1 - 1e-9) <= (cost.mean or 0.0) <= max(known) * (1 + 1e-9)


def test_newer_grades_count_more() -> None:
    cost = GradeCost()
    for seconds in (1.0, 3.0):
        for _ in range(20):
            cost.learn(100, 100 * seconds)
    assert cost.mean == pytest.approx(3.0, rel=0.01)


def test_what_waits_is_what_cannot_run() -> None:
    assert PoolLoad(asked=5, at_once=2).waiting == 3
    assert PoolLoad(asked=1, at_once=2).waiting == 0
