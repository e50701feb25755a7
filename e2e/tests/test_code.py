"""A job whose responses are programs, which reward pods run against test cases."""

import re
from collections.abc import Callable, Mapping

import pytest

from e2e import small_job, volumes
from e2e.jobs import Job
from longboat_runtime.metrics.record import read_records

# Grades of a round of four prompts, by groups of four.
GRADES = 16

pytestmark = pytest.mark.cluster


def records_of(job: Job) -> list[Mapping[str, float]]:
    """Reads the metrics of each step."""
    root = volumes.folder(job.cluster, job.namespace, f"{job.name}-checkpoint")
    return [record.metrics for record in read_records(root) if record.step]


def test_code_is_graded_by_its_cases(elastic_job: Job) -> None:
    """One of two cases passes, whatever the response is; a blank one is no program."""
    steps = len(records_of(elastic_job))
    for metrics in elastic_job.wait("another step", lambda: records_of(elastic_job)[steps:]):
        scored, blank = (metrics.get(f"reward/grades/{kind}", 0.0) for kind in ("scored", "wrong_format"))
        assert scored > blank
        assert metrics["reward/parts/cases/max"] == 0.5
        assert metrics["reward/parts/cases/mean"] == 0.5 * scored / (scored + blank)


@pytest.mark.extended
def test_programs_are_graded_and_their_limits_learned(new_job: Callable[[str], Job]) -> None:
    job = new_job("code")
    job.apply(small_job.code_spec())
    job.wait_for("Succeeded")
    records = records_of(job)
    assert len(records) == 4
    for metrics in records:
        # A tiny model's response may be blank, which is no program.
        kinds = {kind: metrics.get(f"reward/grades/{kind}", 0.0) for kind in ("scored", "wrong_format")}
        assert sum(kinds.values()) == GRADES
        assert kinds["scored"] > kinds["wrong_format"]
        assert metrics["critic/score/mean"] == 1.5 * kinds["scored"] / GRADES
    described = job.cluster.kubectl("-n", job.namespace, "describe", "rljob", job.name)
    # All programs of this job are quicker than minSeconds.
    assert "5 s in the middle, 5 s for a new problem" in described
    assert re.search(r"0 of [1-9]\d* grades", described)
