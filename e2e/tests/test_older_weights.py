"""Rounds that train tokens of older weights, on engines in pods of their own."""

from collections.abc import Callable

import pytest

from e2e import small_job
from e2e.harm import resumes_after, signal_process
from e2e.jobs import Job
from e2e.prompts import fates_in, nothing_is_lost
from tests.support.waiting import eventually

pytestmark = [pytest.mark.cluster, pytest.mark.extended]


@pytest.mark.usefixtures("held_up")
def test_carried_prompts_survive_a_killed_driver(new_job: Callable[[str], Job]) -> None:
    """Unfinished responses go on under new weights; with the driver their tokens are lost, and no prompt is."""
    rounds = {"policy": "ContinueUnfinished", "promptOvercommit": 1.5, "steps": 100_000, "promptsPerRound": 4}
    # Fewer at a time than a round has: they don't all end in the same step, so some are under way when it closes.
    rollout = {"sampling": {"maxTokens": 40}, "maxSequences": 4, "kvCache": "64Mi", "enforceEager": True}
    job = new_job("carried")
    job.apply(small_job.spec(rounds=rounds, rollout=rollout))
    job.wait_for("Running")
    job.wait_for_step(5)
    eventually(lambda: fates_in(job)["mixed"])  # a response went on
    resumes_after(job, lambda: signal_process(job, job.pod("driver"), "driver", "longboat agent driver"))
    eventually(lambda: fates_in(job)["behind"].keys() - {0})  # tokens of older weights were trained
    fates = nothing_is_lost(job)
    assert fates["incarnations"] > 1
    assert not any(steps < 0 for steps in fates["behind"]), "none of weights that were yet to come"
