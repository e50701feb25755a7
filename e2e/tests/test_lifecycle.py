"""Tests what people do to jobs and what machines do to pods, on a real Kubernetes with real vLLM, Ray and torch."""

import json
from functools import partial
from operator import eq, not_
from pathlib import Path

import pytest

from e2e.harm import delete_at_once, resumes_after, signal_process
from e2e.host_runtime import CONTAINERS, ENVIRONMENT
from e2e.installation import NAMESPACE as SYSTEM
from e2e.installation import await_operator, operator_pods
from e2e.jobs import Job
from e2e.prompts import fates_in, nothing_is_lost
from e2e.tests import trespass

pytestmark = pytest.mark.cluster


@pytest.fixture
def job(tail_batching_job: Job) -> Job:
    return tail_batching_job


def test_lost_pods_of_every_other_role_are_replaced_and_the_driver_stays(job: Job) -> None:
    driver = job.pod_uids("driver")
    lost = {role: job.pod(role) for role in ("rollout", "reward", "trainer")}
    for pod in lost.values():
        delete_at_once(job, pod)
    for role, pod in lost.items():
        job.wait(f"a new {role} pod", lambda role=role, pod=pod: job.pod_uids(role).keys() - {pod})  # type: ignore[misc]
    # The next step may still use samples and gradients from before the loss.
    job.wait_for_step(job.step() + 2)
    assert job.pod_uids("driver") == driver
    nothing_is_lost(job)


@pytest.mark.extended
@pytest.mark.parametrize("role", ["rollout", "reward", "trainer"])
def test_lost_pod_is_replaced_and_the_others_stay(job: Job, role: str) -> None:
    others = job.pod_uids(*(CONTAINERS.keys() - {role}))
    (lost,) = job.pod_uids(role)
    delete_at_once(job, lost)
    job.wait("a new pod", lambda: job.pod_uids(role).keys() - {lost})
    # The next step may still use samples and gradients from before the loss.
    job.wait_for_step(job.step() + 2)
    assert job.pod_uids(*(CONTAINERS.keys() - {role})) == others
    nothing_is_lost(job)


def test_lost_driver_pod_resumes_and_keeps_the_other_pods(job: Job) -> None:
    others = job.pod_uids("rollout", "reward", "trainer")
    resumes_after(job, lambda: delete_at_once(job, job.pod("driver")))
    assert job.pod_uids("rollout", "reward", "trainer") == others
    nothing_is_lost(job)


@pytest.mark.extended
def test_killed_driver_container_resumes_in_its_pod(job: Job) -> None:
    pods = job.pod_uids()
    resumes_after(job, lambda: signal_process(job, job.pod("driver"), "driver", "longboat agent driver"))
    assert job.pod_uids() == pods
    nothing_is_lost(job)


@pytest.mark.extended
def test_killed_ray_head_is_joined_again(job: Job) -> None:
    pods = job.pod_uids()
    resumes_after(job, lambda: signal_process(job, job.pod("driver"), "ray-head", "gcs_server"))
    assert job.pod_uids() == pods
    nothing_is_lost(job)


@pytest.mark.extended
def test_killed_operator_changes_no_pod(job: Job) -> None:
    pods = job.pod_uids()
    step = job.step()
    for name in operator_pods(job.cluster):
        job.cluster.kubectl("-n", SYSTEM, "delete", "pod", name, "--grace-period=0", "--force")
    job.wait_for_step(step + 3)
    await_operator(job.cluster)
    job.wait_for_step(job.step() + 2)
    assert job.pod_uids() == pods
    nothing_is_lost(job)


@pytest.mark.extended
def test_code_on_the_ray_head_reads_nothing_of_the_driver(job: Job) -> None:
    """Whoever has the job's Ray token can run code there: here, a rollout pod."""
    command = (str(ENVIRONMENT / "bin" / "python"), trespass.__file__)
    report = json.loads(job.exec(job.pod("rollout"), "rollout", *command).splitlines()[-1])
    for program in ("longboat agent driver", "longboat_runtime.cli driver"):
        assert any(program in command for command in report["driver"]), f"{program} is seen"
        assert any(program in command for command in report["hidden"]), f"{program} is hidden from its own user"
    refused = {command: set(paths.values()) == {"EACCES"} for command, paths in report["driver"].items()}
    assert all(refused.values()), f"user {report['user']} on the head: {report['driver']}"
    assert report["token"] == "ENOENT", "the head mounts no API token"


@pytest.mark.extended
def test_responses_are_shown_from_the_driver_pod(job: Job, tmp_path: Path) -> None:
    samples = job.samples(tmp_path)
    assert {sample["fate"] for sample in samples} >= {"kept"}
    assert all("say " in sample["prompt"] for sample in samples)
    # A response may be just its end, which is no text.
    assert all(sample["response"] or sample["finish_reason"] == "stop" for sample in samples)
    assert any(sample["response"] for sample in samples)
    # The newest file is written before the oldest is removed.
    assert 1 <= len({sample["step"] for sample in samples}) <= 4


def test_suspend_keeps_a_step_and_resume_continues_there(job: Job) -> None:
    job.patch({"suspend": True})
    job.wait("suspended", lambda: job.status()["phase"], partial(eq, "Suspended"))
    job.wait("pods released", job.pods, not_)
    saved = job.status()["checkpoint"]["step"]
    assert saved == job.step()
    assert str(saved) in job.condition("Suspended")["message"]
    job.patch({"suspend": False})
    job.wait_for("Running")
    job.wait_for_step(saved + 1)
    assert fates_in(job)["begun"][-1] == saved
    nothing_is_lost(job)
