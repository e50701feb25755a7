from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from longboat_crds.reasons import Reason
from longboat_runtime.rollout.weight_updates import (
    EXHAUSTED,
    MAX_BACKOFF_SECONDS,
    all_engines_refused,
    refused_everywhere,
    seconds_to_restart,
)


def test_the_publication_again_then_a_restart_then_restarts_with_pauses() -> None:
    again, restart, *waits = [seconds_to_restart(number) for number in range(1, 6)]
    assert (again, restart) == (None, 0.0)
    assert 0 < waits[0] < waits[1] < waits[2]


@given(st.integers(2, 10**9))
def test_pauses_never_shrink_and_have_a_bound(refusals: int) -> None:
    assert seconds_to_restart(refusals) <= seconds_to_restart(refusals + 1) <= MAX_BACKOFF_SECONDS


def test_there_is_hope_while_one_serves_or_one_has_not_been_restarted() -> None:
    assert all_engines_refused([EXHAUSTED, EXHAUSTED + 4], serving=0)
    assert not all_engines_refused([EXHAUSTED, EXHAUSTED], serving=1)
    assert not all_engines_refused([EXHAUSTED, EXHAUSTED - 1], serving=0)
    assert not all_engines_refused([EXHAUSTED, 0], serving=0), "one that still starts may serve"
    assert not all_engines_refused([], serving=0)


def test_the_end_names_each_difference_and_a_cure() -> None:
    problem = refused_everywhere(7, {"b": "engine b refused: differ by 0.3", "a": "engine a refused: differ by 0.2"})
    assert (problem.reason, problem.fatal) == (Reason.ENGINE_REFUSED, True)
    assert "step 7" in problem.message
    assert "differ by 0.2; engine b refused: differ by 0.3" in problem.message
    assert "rollout.enforceEager" in problem.message
