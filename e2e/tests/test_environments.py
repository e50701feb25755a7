"""Environment pods on a real cluster: they join the job, are ready once environments answer, and keep the user's code from Ray."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from e2e import small_job
from e2e.harm import delete_at_once
from e2e.jobs import Job

pytestmark = [pytest.mark.cluster, pytest.mark.extended]

LOOK = """
import json, os
view = {"user": os.getuid(), "ray": [name for name in os.environ if name.startswith("RAY")]}
for name in ("/etc/longboat/ray-token/token", "/var/run/secrets/kubernetes.io/serviceaccount/token"):
    view[name] = os.path.exists(name)
print(json.dumps(view))
"""


def spec() -> dict[str, Any]:
    """Makes the spec of a job with one environment, in a pool of two pods."""
    made = small_job.spec()
    return made | {
        "model": made["model"] | {"maxLength": 64},
        "environments": [{"name": "vowels", "function": "/data/play.py:episode"}],
        "environmentPools": [{"name": "vowels", "replicas": 2, "episodesPerPod": 4}],
        "rewards": [{"name": "episode", "kind": "Episode"}],
    }


def test_environment_pods_are_ready_are_replaced_and_hide_ray_from_the_users_code(
    new_job: Callable[[str], Job],
) -> None:
    job = new_job("plays")
    job.apply(spec())
    job.wait("two ready environment pods", lambda: ready(job) == "2/2")
    first = min(job.pod_uids("environment"))
    view = json.loads(job.exec(first, "environment", "python3", "-c", LOOK))
    assert view.pop("user") == 10002
    assert view.pop("ray") == []
    assert not any(view.values()), view
    delete_at_once(job, first)
    job.wait("another pod in its place", lambda: first not in job.pod_uids("environment") and ready(job) == "2/2")


def ready(job: Job) -> str | None:
    """Reads how many environment pods are ready, from the job's status."""
    roles = job.status().get("roles", {})
    return (roles.get("environment") or {}).get("readyText")
