"""Rollout pods that have to go, on engines in pods of their own: what runs there continues elsewhere."""

from collections.abc import Callable
from functools import partial
from operator import eq
from typing import Any

import pytest

from e2e import small_job
from e2e.jobs import Job
from e2e.prompts import fates_in
from e2e.site import Site
from tests.support.waiting import eventually

pytestmark = [pytest.mark.cluster, pytest.mark.extended]


def test_responses_of_a_deleted_pod_and_of_a_smaller_scale_continue_elsewhere(
    site: Site, new_job: Callable[[str], Job]
) -> None:
    """One response at a time and many a round: engines are slower than the trainer, so that responses run at almost any moment."""
    rounds = {"policy": "BoundedAsync", "maxStaleness": 2, "steps": 100_000, "promptsPerRound": 32}
    rollout = {
        "replicas": 2,
        "sampling": {"maxTokens": 40},
        "maxSequences": 1,
        "kvCache": "64Mi",
        "enforceEager": True,
    }
    # With its 10 s, a pod would have 5 to give its responses away, while engines keep all CPUs busy.
    runtime = site.apply_runtime("moving", lambda specs: specs["rollout"].update(terminationGracePeriodSeconds=60))
    job = new_job("moving")

    def scale(replicas: int) -> None:
        job.cluster.kubectl("-n", job.namespace, "scale", "rljob", job.name, f"--replicas={replicas}")

    def both_serve() -> None:
        job.wait("both pods serve", lambda: job.status()["roles"]["rollout"].get("readyText"), partial(eq, "2/2"))

    def moved_by_a_smaller_scale() -> dict[str, Any]:
        """Takes one of two pods away, and returns what became of all prompts since the job began."""
        scale(2)
        both_serve()
        job.wait_for_step(job.step() + 1)
        scale(1)
        job.wait("one pod", lambda: job.pod_uids("rollout"), lambda pods: len(pods) == 1)
        job.wait_for_step(job.step() + 3)
        return fates_in(job)

    job.apply(small_job.spec(runtime, rounds=rounds, rollout=rollout))
    job.wait_for("Running")
    both_serve()
    job.wait_for_step(job.step() + 1)
    before = job.pod_uids("rollout")
    gone = min(before)
    job.cluster.kubectl("-n", job.namespace, "delete", "pod", gone)
    job.wait("another pod", lambda: job.pod_uids("rollout").keys() - before.keys())
    # If no response happens to be running on the pod that goes, the job is scaled again.
    fates = eventually(moved_by_a_smaller_scale, lambda fates: fates["moved_samples"] > 0)
    assert (fates["lost"], fates["doubled"], fates["uncovered"]) == ([], [], [])
    assert fates["lost_samples"] == 0, "nothing had to be drawn again"
