"""`longboat doctor` in the containers of a job that trains."""

import json
from typing import Any

import pytest

from e2e.cluster.errors import CommandError
from e2e.host_runtime import CONTAINERS, ENVIRONMENT
from e2e.jobs import Job

pytestmark = [pytest.mark.cluster, pytest.mark.extended]

DOCTOR = f"{ENVIRONMENT}/bin/longboat doctor"


@pytest.fixture
def job(tail_batching_job: Job) -> Job:
    return tail_batching_job


@pytest.mark.parametrize(
    ("role", "container"), [(role, container) for role, containers in CONTAINERS.items() for container in containers]
)
def test_nothing_is_wrong_in_a_job_that_trains(job: Job, role: str, container: str) -> None:
    lines = job.exec(job.pod(role), container, *DOCTOR.split(), "--json").splitlines()
    findings: dict[str, dict[str, Any]] = {finding["check"]: finding for finding in map(json.loads, lines)}
    assert not [finding for finding in findings.values() if finding["verdict"] == "wrong"]
    head, ray = findings["Ray head"], container != "graders"
    assert (head["verdict"], "counts this pod's node" in head["text"]) == (("ok", True) if ray else ("skipped", False))
    assert (findings["shared memory"]["verdict"] == "skipped") == (not ray)
    assert ("volume /checkpoint" in findings) == (container in {"driver", "trainer"})
    assert findings["devices"]["text"].startswith("no GPU")
    if container == "driver":
        assert findings["clock"]["text"] == "within 2 s of the API server's"


def test_what_is_wrong_comes_with_its_cure_and_ends_the_command_with_1(job: Job) -> None:
    """Limits files to half a megabyte, so that no probe of a volume can be written."""
    with pytest.raises(CommandError) as caught:
        job.exec(job.pod("trainer"), "trainer", "sh", "-c", f"ulimit -f 1000; exec {DOCTOR} >&2")
    assert "wrong    volume /checkpoint: for checkpoints: writing and syncing a file fails" in caught.value.stderr
    assert "\n         cure: " in caught.value.stderr
    # kubectl ends with the command's own status.
    assert caught.value.status == 1
