"""What the driver asks for."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from longboat_runtime.driver.demand import give_first, next_demand
from longboat_runtime.rollout.load import PodLoad

PODS = st.dictionaries(
    st.sampled_from([f"job-rollout-{i}-a0" for i in range(6)]), st.builds(PodLoad, st.integers(0, 3), st.integers(0, 9))
)


def test_pods_that_serve_nothing_are_given_first_and_then_those_with_the_least_under_way() -> None:
    pods = {"a": PodLoad(2, 5), "b": PodLoad(0, 0), "c": PodLoad(1, 3), "d": PodLoad(0, 7), "e": PodLoad(1, 3)}
    assert give_first(pods) == ["b", "d", "e", "c", "a"]


@given(PODS)
def test_every_pod_is_named_once(pods: dict[str, PodLoad]) -> None:
    assert sorted(give_first(pods)) == sorted(pods)


@given(st.lists(st.tuples(st.integers(0, 3), PODS, st.sets(st.sampled_from("abc"))), min_size=1, max_size=20))
def test_each_change_of_the_ask_has_its_number_and_nothing_else_has(
    moments: list[tuple[int, dict[str, PodLoad], set[str]]],
) -> None:
    demand, before = None, None
    for replicas, pods, drained in moments:
        after = next_demand(demand, 7, replicas, pods, sorted(drained))
        ask = replicas, sorted(drained)
        expected = 1 if demand is None else demand.number + (ask != before)
        assert (after.incarnation, after.number, after.replicas, after.drained or []) == (7, expected, *ask)
        if demand is not None and ask == before and sorted(pods) == sorted(demand.give_first or ()):
            assert after is demand, "what runs where is no reason to publish anything"
        assert sorted(after.give_first or ()) == sorted(pods)
        demand, before = after, ask
