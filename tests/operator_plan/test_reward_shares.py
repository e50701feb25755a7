"""What each reward pool gets of a job's CPUs."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from longboat_crds.quantities import cpu_quantity, millicores
from longboat_crds.rewards import RewardPoolSpec
from longboat_crds.status import RewardDemand, RewardGrant
from longboat_operator.plan.reward_shares import LEAST_CHANGE, moved, reward_grant_of

MILLICORES = st.integers(0, 9000)


def pool(name: str, least: int | None = None, most: int | None = None, **more: Any) -> RewardPoolSpec:
    bounds = {key: cpu_quantity(cpu) for key, cpu in (("min", least), ("max", most)) if cpu is not None}
    return RewardPoolSpec.model_validate({"name": name, **more} | ({"cpu": bounds} if bounds else {}))


def demand(number: int = 1, **asks: int) -> RewardDemand:
    pools = [{"name": name, "cpu": cpu_quantity(cpu)} for name, cpu in asks.items()]
    return RewardDemand.model_validate({"incarnation": 1, "number": number, "pools": pools})


def grant(**cpus: int) -> RewardGrant:
    return RewardGrant.model_validate({"pools": [{"name": n, "cpu": cpu_quantity(cpu)} for n, cpu in cpus.items()]})


def shares(found: RewardGrant) -> dict[str, int]:
    return {each.name: millicores(each.cpu) for each in found.pools or ()}


TWO = [pool("code"), pool("math", gradersPerPod=3)]


@pytest.mark.parametrize(
    ("pools", "expected"),
    [
        (TWO, {"code": 1000, "math": 3000}),
        ([pool("code", replicas=3), pool("math", gradersPerPod=3)], {"code": 2000, "math": 2000}),
        ([pool("code", 1500), pool("math", gradersPerPod=3)], {"code": 1500, "math": 2500}),
        ([pool("code"), pool("math", None, 2000, gradersPerPod=3)], {"code": 2000, "math": 2000}),
        ([pool("code", None, 500), pool("math", None, 1000)], {"code": 500, "math": 1000}),
        ([pool("a"), pool("b"), pool("c")], {"a": 1334, "b": 1333, "c": 1333}),
    ],
)
def test_before_any_demand_the_total_is_divided_by_graders_within_the_bounds(
    pools: list[RewardPoolSpec], expected: dict[str, int]
) -> None:
    found = reward_grant_of(4000, pools, None, None)
    assert (shares(found), found.answers) == (expected, None)


def test_a_demand_moves_cpus_to_the_pool_that_asks_for_more_and_is_answered_by_its_number() -> None:
    found = reward_grant_of(4000, TWO, grant(code=1000, math=3000), demand(7, code=3000, math=1000))
    assert (shares(found), found.answers) == ({"code": 3000, "math": 1000}, 7)


@pytest.mark.parametrize(
    "asked",
    [
        demand(code=500, math=500),  # nobody asks for more: no shrink for idleness
        demand(code=1000),
        demand(code=1249, math=2751),  # less than LEAST_CHANGE
        demand(math=5000),  # its bound is what code keeps
        demand(),
        None,
    ],
)
def test_without_a_pool_that_asks_for_enough_more_everything_stays(asked: RewardDemand | None) -> None:
    pools = [pool("code", 1000), pool("math", gradersPerPod=3)]
    assert shares(reward_grant_of(4000, pools, grant(code=1000, math=3000), asked)) == {"code": 1000, "math": 3000}


def test_asks_beyond_the_total_are_cut_in_proportion_with_what_pools_hold_that_none_names() -> None:
    found = reward_grant_of(4000, [*TWO, pool("style")], grant(code=1000, math=2000, style=1000), demand(code=3000))
    assert shares(found) == {"code": 2001, "math": 1333, "style": 666}


def test_a_new_driver_that_has_not_asked_changes_nothing() -> None:
    held = grant(code=3000, math=1000)
    assert shares(reward_grant_of(4000, TWO, held, None)) == {"code": 3000, "math": 1000}


@pytest.mark.parametrize("held", [grant(code=1000), grant(code=1000, style=3000), grant(code=50, math=3950)])
def test_a_grant_that_does_not_fit_the_spec_any_more_is_made_anew(held: RewardGrant) -> None:
    assert shares(reward_grant_of(4000, TWO, held, None)) == {"code": 1000, "math": 3000}


@st.composite
def pools_of(draw: st.DrawFn) -> tuple[int, list[RewardPoolSpec]]:
    """A total, and pools that it is enough for."""
    made = []
    for name in "abcd"[: draw(st.integers(1, 4))]:
        replicas = draw(st.integers(1, 4))
        least = draw(st.none() | st.integers(replicas, 1500))
        most = draw(st.none() | st.integers(max(least or 0, replicas), 4000))
        made.append(pool(name, least, most, replicas=replicas, gradersPerPod=draw(st.integers(1, 8))))
    needed = sum(each.cpu_bounds(10**6)[0] for each in made)
    return needed + draw(st.integers(0, 6000)), made


# In thirds, two are further beyond their most than one is below its least; in whole millicores it seems as far.
BOUNDS = {"a": (1, 1), "b": (1, 1), "c": (100, None)}
THIRDS = 104, [pool(name, *bounds, gradersPerPod=1) for name, bounds in BOUNDS.items()]


@example(given_=THIRDS, asks=[])
@given(given_=pools_of(), asks=st.lists(st.lists(MILLICORES, min_size=4, max_size=4), max_size=5))
def test_whatever_is_asked_for_shares_are_within_their_bounds_and_the_total(
    given_: tuple[int, list[RewardPoolSpec]], asks: list[list[int]]
) -> None:
    total, pools = given_
    held = reward_grant_of(total, pools, None, None)
    first = shares(held)
    tops = {each.name: each.cpu_bounds(total)[1] for each in pools}
    assert sum(first.values()) == min(total, sum(tops.values())), "nothing that may be given is left over"
    for number, ask in enumerate(asks, 1):
        asked = demand(number, **dict(zip((each.name for each in pools), ask, strict=False)))
        before, held = shares(held), reward_grant_of(total, pools, held, asked)
        after = shares(held)
        assert sum(after.values()) <= total
        for each in pools:
            least, most = each.cpu_bounds(total)
            assert least <= after[each.name] <= most
        changes = {name: after[name] - before[name] for name in after}
        assert all(change == 0 or abs(change) >= LEAST_CHANGE for change in changes.values())
        lost, gained = (sum(max(0, sign * change) for change in changes.values()) for sign in (-1, 1))
        assert lost <= gained, "CPUs leave a pool only for another"
        assert reward_grant_of(total, pools, held, asked) == held, "once is enough"


@given(
    held=st.lists(st.integers(0, 3000), min_size=4, max_size=4),
    wanted=st.lists(st.integers(0, 3000), min_size=4, max_size=4),
)
def test_nobody_gets_more_than_it_wants_or_gives_more_than_it_does_without(held: list[int], wanted: list[int]) -> None:
    before, asked = (dict(zip("abcd", cpus, strict=True)) for cpus in (held, wanted))
    total = max(sum(held), sum(wanted))
    after = moved(total, before, asked)
    assert sum(after.values()) <= total
    for name in before:
        low, high = sorted((before[name], asked[name]))
        assert low <= after[name] <= high
    gains = [asked[n] - before[n] for n in before if asked[n] - before[n] >= LEAST_CHANGE]
    whole = all(abs(asked[n] - before[n]) >= LEAST_CHANGE or asked[n] == before[n] for n in before)
    if whole and gains and sum(wanted) == sum(held) == total and len([n for n in before if asked[n] < before[n]]) == 1:
        assert after == asked, "a single donor gives all that is wanted"
