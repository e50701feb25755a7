"""The faults of `make chaos` follow from the seed; what they may hit is there."""

from __future__ import annotations

from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from e2e.chaos.faults import title
from e2e.chaos.run import policies
from e2e.chaos.schedule import Kind, choose, faults
from longboat_crds.rounds import RoundPolicyName


@given(st.integers())
def test_a_seed_gives_the_same_faults_each_time(seed: int) -> None:
    assert list(islice(faults(seed), 50)) == list(islice(faults(seed), 50))


def test_another_seed_gives_other_faults() -> None:
    assert list(islice(faults(1), 5)) != list(islice(faults(2), 5))


def test_all_kinds_come() -> None:
    assert {fault.kind for fault in islice(faults(1), 300)} == set(Kind)


@given(st.lists(st.integers(), min_size=1), st.floats(0, 1, exclude_max=True))
def test_a_draw_always_falls_on_an_option(options: list[int], draw: float) -> None:
    assert choose(options, draw) in options


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (["ray::EngineActor.run_step"], "ray::EngineActor"),
        (["ray::IDLE"], "ray::IDLE"),
        (["/env/lib/ray/core/src/ray/raylet/raylet", "--raylet_socket_name=/tmp/s"], "raylet"),
        (["/env/bin/python", "/env/bin/longboat", "agent", "rollout", "--head", "h:1"], "longboat agent rollout"),
        (["python", "-m", "longboat_graders.zygote", "9"], "longboat_graders.zygote"),
        (["/env/bin/python", "-u", "/env/ray/dashboard/agent.py", "--node-ip-address=1"], "dashboard/agent.py"),
        ([], ""),
    ],
)
def test_a_process_is_called_by_what_it_runs(words: list[str], name: str) -> None:
    assert title(words) == name


def test_an_unknown_policy_is_told_with_those_that_there_are() -> None:
    assert policies("all") == list(RoundPolicyName)
    assert policies("TailBatching") == [RoundPolicyName.TAIL_BATCHING]
    with pytest.raises(ValueError, match=r"TailBaching.*Synchronous, TailBatching"):
        policies("TailBaching")
