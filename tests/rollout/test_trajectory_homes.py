"""A trajectory stays with its engine, and engines get equally many."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from longboat_runtime.rollout.trajectory_homes import TrajectoryHomes
from longboat_runtime.samples import SampleId

ENGINES = ("a", "b", "c")


def trajectory(number: int) -> SampleId:
    return SampleId(0, number, 0, 0)


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("turn"), st.integers(0, 8)),
        st.tuples(st.just("ended"), st.integers(0, 8)),
        st.tuples(st.just("open"), st.sampled_from(ENGINES)),
        st.tuples(st.just("close"), st.sampled_from(ENGINES)),
        st.tuples(st.just("open_only"), st.sets(st.sampled_from(ENGINES))),
    ),
    max_size=60,
)


@given(STEPS)
def test_it_leaves_only_an_engine_that_is_closed_and_goes_to_the_emptiest(steps: list[tuple[str, object]]) -> None:
    homes, at, open_ = TrajectoryHomes("pod-0"), dict[SampleId, str](), set[str]()
    for verb, what in steps:
        match verb, what:
            case "turn", int(number):
                before = at.get(trajectory(number))
                home = homes.home(trajectory(number))
                assert (home is None) == (not open_)
                if home is None:
                    continue
                if before in open_:
                    assert home == before
                else:
                    at.pop(trajectory(number), None)
                    counts = Counter(at.values())
                    assert home in open_
                    assert counts[home] == min(counts[each] for each in open_) or before == home
                at[trajectory(number)] = home
            case "ended", int(number):
                homes.ended(trajectory(number))
                at.pop(trajectory(number), None)
            case "open", str(engine):
                homes.open(engine)
                open_.add(engine)
            case "close", str(engine):
                homes.close(engine)
                open_.discard(engine)
            case "open_only", set(engines):
                homes.open_only(engines)
                open_ = {*engines}


def test_choosers_do_not_all_begin_with_the_same_engine() -> None:
    first = set()
    for pod in range(20):
        homes = TrajectoryHomes(f"job-envs-{pod}")
        homes.open_only(ENGINES)
        first.add(homes.home(trajectory(0)))
    assert first == {*ENGINES}
