"""The benchmark's thousand jobs, a few of them: demands come at any moment of what earlier ones have set going."""

from __future__ import annotations

from bench.operator.many_jobs import many_jobs


def test_every_change_that_calls_for_a_plan_gets_one() -> None:
    # The last of three demands takes a pod back: no later one hides what was missed.
    found = many_jobs(jobs=20, period_seconds=1.5, seconds=4.5)
    assert found["demands"] == 60
    assert found["unsettled"] == 0
