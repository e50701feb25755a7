"""Jobs that train to their end: the quickstart of `examples/`, and a mixture of experts."""

from operator import not_

import pytest

from e2e import quickstart
from e2e.jobs import Job
from e2e.prompts import fates_in, nothing_is_lost
from e2e.tests.test_code import records_of

pytestmark = pytest.mark.cluster


def succeeds(job: Job, steps: int) -> None:
    """Asserts that the job ends with weights that engine and trainer agree on, an export and no pods, and that kubectl shows it."""
    job.wait_for("Succeeded")
    status = job.status()
    assert status["phase"] == "Succeeded"
    assert status["training"]["step"] == steps
    assert float(status["training"]["parity"]) < 1e-4
    assert status["checkpoint"]["step"] == steps
    assert status["checkpoint"]["export"]
    job.wait("pods released", job.pods, not_)
    columns = job.cluster.kubectl("-n", job.namespace, "get", "rlj", job.name).split()
    assert {"PHASE", "STEP", "REWARD", "ROLLOUT"} <= set(columns)
    assert "Succeeded" in columns
    nothing_is_lost(job)


def test_the_quickstart_trains_in_short_and_long_rounds_and_succeeds(quickstart_job: Job) -> None:
    succeeds(quickstart_job, quickstart.STEPS)
    training = quickstart_job.status()["training"]
    means = [metrics["critic/score/mean"] for metrics in records_of(quickstart_job)]
    assert training["reward"] == f"{means[-1]:.4g}"
    # All 32 responses of a step begin wrong once in seventy, after this short a warm-up.
    assert max(means) > 0
    assert {summary["kind"] for summary in training["recentRounds"]} == {"Short", "Long"}
    assert fates_in(quickstart_job)["deferred"] > 0, "short rounds left prompts behind"


@pytest.mark.extended
def test_job_of_a_mixture_of_experts_finishes_with_an_export(experts_job: Job) -> None:
    succeeds(experts_job, steps=4)
