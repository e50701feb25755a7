"""When a job that a fault hit is well again, and when it is stuck."""

from __future__ import annotations

from typing import Any, cast

from e2e.chaos.lives import Life
from e2e.chaos.run import NEW_STEPS, Wound
from longboat_crds.rounds import RoundPolicyName

PATIENCE = 100.0


def life(step: int, looked_at: float) -> Life:
    return Life(cast("Any", None), RoundPolicyName.SYNCHRONOUS, began=0.0, until=0.0, step=step, looked_at=looked_at)


def test_steps_count_from_the_first_look_after_the_fault() -> None:
    """While the API server is away nothing is seen: steps that were made in that time show nothing."""
    wound = Wound(life(5, looked_at=9.0))
    assert wound.judge(over=10.0, now=11.0, patience=PATIENCE) == ""
    wound.life.step, wound.life.looked_at = 50, 12.0
    assert wound.judge(over=10.0, now=12.0, patience=PATIENCE) == ""
    wound.life.step, wound.life.looked_at = 50 + NEW_STEPS, 15.0
    assert wound.judge(over=10.0, now=15.0, patience=PATIENCE) == "recovered"
    assert wound.seconds == 5.0


def test_a_rollback_is_no_recovery_until_new_steps_are_made() -> None:
    wound = Wound(life(20, looked_at=11.0))
    assert wound.judge(over=10.0, now=11.0, patience=PATIENCE) == ""
    wound.life.step = 18
    assert wound.judge(over=10.0, now=20.0, patience=PATIENCE) == ""
    assert wound.judge(over=10.0, now=111.0, patience=PATIENCE) == "stuck"


def test_a_job_that_failed_has_not_recovered_whatever_its_step() -> None:
    wound = Wound(life(20, looked_at=11.0))
    wound.judge(over=10.0, now=11.0, patience=PATIENCE)
    wound.life.step, wound.life.failed = 40, "RestartLimitExceeded: ..."
    assert wound.judge(over=10.0, now=12.0, patience=PATIENCE) == "failed"
