"""The benchmark's thousand jobs, a few of them: demands come at any moment of what earlier ones have set going."""

from __future__ import annotations

from bench.operator.many_jobs import many_jobs


def test_every_change_that_calls_for_a_plan_gets_one() -> None:
    found = many_jobs(jobs=20, period_seconds=1.5, seconds=6.0)
    assert found["demands"] == 80
    assert found["unsettled"] == 0
