"""`longboat doctor` in the containers of a job that trains."""

import pytest

from e2e.cluster.errors import CommandError
from e2e.doctor import DOCTOR, nothing_is_wrong
from e2e.host_runtime import CONTAINERS
from e2e.jobs import Job

pytestmark = [pytest.mark.cluster, pytest.mark.extended]


@pytest.fixture
def job(tail_batching_job: Job) -> Job:
    return tail_batching_job


@pytest.mark.parametrize(
    ("role", "container"),
    [(role, name) for role, names in CONTAINERS.items() if role != "environment" for name in names],
)
def test_nothing_is_wrong_in_a_job_that_trains(job: Job, role: str, container: str) -> None:
    nothing_is_wrong(job, role, container)


def test_what_is_wrong_comes_with_its_cure_and_ends_the_command_with_1(job: Job) -> None:
    """Limits files to half a megabyte, so that no probe of a volume can be written."""
    with pytest.raises(CommandError) as caught:
        job.exec(job.pod("trainer"), "trainer", "sh", "-c", f"ulimit -f 1000; exec {DOCTOR} >&2")
    assert "wrong    volume /checkpoint: for checkpoints: writing and syncing a file fails" in caught.value.stderr
    assert "\n         cure: " in caught.value.stderr
    # kubectl ends with the command's own status.
    assert caught.value.status == 1
