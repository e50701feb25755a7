"""`longboat doctor` in the containers of a job."""

import json
from typing import Any

from e2e.host_runtime import ENVIRONMENT
from e2e.jobs import Job

DOCTOR = f"{ENVIRONMENT}/bin/longboat doctor"
WITH_CODE = {"graders", "environment"}
"""The containers with the user's own code, which use neither Ray nor its shared memory."""


def nothing_is_wrong(job: Job, role: str, container: str) -> None:
    """Asserts that the doctor finds nothing wrong in a container of a job that trains, and has looked at what that container uses."""
    lines = job.exec(job.pod(role), container, *DOCTOR.split(), "--json").splitlines()
    findings: dict[str, dict[str, Any]] = {finding["check"]: finding for finding in map(json.loads, lines)}
    assert not [finding for finding in findings.values() if finding["verdict"] == "wrong"]
    head, ray = findings["Ray head"], container not in WITH_CODE
    assert (head["verdict"], "counts this pod's node" in head["text"]) == (("ok", True) if ray else ("skipped", False))
    assert (findings["shared memory"]["verdict"] == "skipped") == (not ray)
    assert ("volume /checkpoint" in findings) == (container in {"driver", "trainer"})
    assert findings["devices"]["text"].startswith("no GPU")
    if container == "driver":
        assert findings["clock"]["text"] == "within 2 s of the API server's"
