"""Steps are raised while a job runs, and again when its driver has ended and the operator hasn't seen it."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from operator import eq
from pathlib import Path

import pytest

from e2e import small_job, volumes
from e2e.installation import operator_away
from e2e.jobs import Job
from e2e.prompts import fates_in
from e2e.site import Site
from longboat_runtime.eventlog import newest, surviving
from longboat_runtime.metrics.record import read_records
from longboat_runtime.rounds import events

pytestmark = [pytest.mark.cluster, pytest.mark.extended]

RATE = 1e-4
FIRST, SECOND, LAST = 30, 32, 34
HOLD = "hold-longer"


@contextmanager
def holding(data: Path) -> Iterator[None]:
    """Keeps the job from making steps, but for one that is under way, during the block, however long that takes."""
    file = data / HOLD
    file.touch()
    try:
        yield
    finally:
        file.unlink()


def horizons(job: Job) -> dict[int, int]:
    """Maps each step to the job's number of steps as it was when the step began."""
    root = volumes.folder(job.cluster, job.namespace, f"{job.name}-checkpoint")
    end = newest(root)
    assert end is not None
    totals, steps = {}, FIRST
    for event in surviving(root, end):
        match event.body:
            case events.SpecChanged(steps=changed):
                steps = changed
            case events.StepStarted(step=step):
                totals[step] = steps
    return totals


def rates(job: Job) -> dict[int, float]:
    root = volumes.folder(job.cluster, job.namespace, f"{job.name}-checkpoint")
    return {record.step: record.metrics["actor/lr"] for record in read_records(root) if record.step}


def test_a_job_ends_at_the_number_of_steps_that_its_spec_has_at_the_end(
    site: Site, new_job: Callable[[str], Job]
) -> None:
    job = new_job("longer")
    optimizer = {"learningRate": RATE, "schedule": "Linear"}
    job.apply(
        small_job.spec(
            rounds={"steps": FIRST, "promptsPerRound": 4},
            rewards=[small_job.hold_grades(reward, HOLD) for reward in small_job.spec()["rewards"]],
            trainer={"optimizer": optimizer, "maxTokensPerBin": 256},
            failurePolicy={"maxDriverRestarts": 0},
        )
    )
    job.wait_for_step(2)
    with holding(site.data):
        job.patch({"rounds": {"steps": SECOND}})
    job.wait("the driver follows", lambda: job.status()["training"]["steps"], partial(eq, SECOND))
    with ExitStack() as away:
        with holding(site.data):
            away.enter_context(operator_away(job.cluster))
        job.wait("the driver ends", lambda: job.status()["training"]["state"], partial(eq, "Succeeded"))
        assert job.step() == SECOND
        assert job.status()["phase"] == "Running", "which nobody has seen"
        job.patch({"rounds": {"steps": LAST}})
    job.wait_for("Succeeded")
    status = job.status()
    assert (status["training"]["step"], status["checkpoint"]["step"]) == (LAST, LAST)
    (restart,) = [record for record in status["restartHistory"] if record["role"] == "driver"]
    assert not restart["counted"]
    assert f"rounds.steps was raised to {LAST}" in restart["message"]
    began = horizons(job)
    assert [*began] == [*range(1, LAST + 1)]
    assert (began[1], began[SECOND], began[SECOND + 1]) == (FIRST, SECOND, LAST)
    assert rates(job) == {step: pytest.approx(RATE * (steps - step + 1) / steps) for step, steps in began.items()}
    fates = fates_in(job)
    assert (fates["lost"], fates["doubled"], fates["begun"]) == ([], [], [0, SECOND])
