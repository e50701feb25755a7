"""Environments on a real cluster: they are trained on, their pods are replaced, and users' code is kept from Ray."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e import episodes_job
from e2e.doctor import nothing_is_wrong
from e2e.harm import delete_at_once
from e2e.host_runtime import CONTAINERS
from e2e.jobs import Job
from e2e.prompts import nothing_is_lost
from e2e.site import Site

pytestmark = [pytest.mark.cluster, pytest.mark.extended]

LOOK = """
import json, os
view = {"user": os.getuid(), "ray": [name for name in os.environ if name.startswith("RAY")]}
for name in ("/etc/longboat/ray-token/token", "/var/run/secrets/kubernetes.io/serviceaccount/token"):
    view[name] = os.path.exists(name)
print(json.dumps(view))
"""
PROMPTS = 6


@pytest.fixture(scope="module")
def playing(site: Site) -> Iterator[Job]:
    """Yields a job that plays until it is deleted."""
    episodes_job.write_data(site.data)
    job = Job(site.cluster, site.namespace, "plays")
    job.apply(episodes_job.spec(rounds={"steps": 100_000, "promptsPerRound": PROMPTS}))
    yield job
    job.delete()


def test_environments_of_three_kinds_are_trained(playing: Job, tmp_path: Path) -> None:
    playing.wait_for_step(8)
    episodes_job.all_are_played(playing.samples(tmp_path))
    nothing_is_lost(playing)


@pytest.mark.parametrize("container", CONTAINERS["environment"])
def test_the_doctor_finds_nothing_wrong(playing: Job, container: str) -> None:
    playing.wait("two ready environment pods", lambda: ready(playing) == "2/2")
    nothing_is_wrong(playing, "environment", container)


def test_environment_pods_are_replaced_and_hide_ray_from_users_code(playing: Job) -> None:
    playing.wait("two ready environment pods", lambda: ready(playing) == "2/2")
    first = min(playing.pod_uids("environment"))
    view = json.loads(playing.exec(first, "environment", "python3", "-c", LOOK))
    assert view.pop("user") == 10002
    assert view.pop("ray") == []
    assert not any(view.values()), view
    step = playing.step()
    delete_at_once(playing, first)
    playing.wait(
        "another pod in its place", lambda: first not in playing.pod_uids("environment") and ready(playing) == "2/2"
    )
    playing.wait_for_step(step + 3)
    nothing_is_lost(playing)


def ready(job: Job) -> str | None:
    """Reads how many environment pods are ready, from the job's status."""
    roles = job.status().get("roles", {})
    return (roles.get("environment") or {}).get("readyText")
