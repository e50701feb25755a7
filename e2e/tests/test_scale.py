"""Rollout pods that come and go on a running job: what the driver asks for, what it is granted, and what is lost on the way: nothing."""

import re
from collections.abc import Callable
from functools import partial
from operator import eq
from typing import Any

import pytest

from e2e import small_job
from e2e.harm import api_server_frozen, delete_at_once, signal_process
from e2e.installation import operator_away
from e2e.jobs import Job
from e2e.prompts import fates_in, nothing_is_lost
from e2e.volumes import folder
from e2e.watches import following
from longboat_runtime.eventlog import newest, surviving
from longboat_runtime.rounds import events, measurements

pytestmark = pytest.mark.cluster

ROUNDS = {"policy": "BoundedAsync", "maxStaleness": 2, "steps": 100_000, "promptsPerRound": 4}
ROLLOUT = {"sampling": {"maxTokens": 40}, "maxSequences": 2, "kvCache": "64Mi", "enforceEager": True}
# What Ray calls the process of an engine that starts.
ENGINE = "ray::EngineActor.start"


@pytest.fixture
def job(new_job: Callable[[str], Job], request: pytest.FixtureRequest) -> Job:
    """Starts a job with more steps than any test waits for, so that responses run whenever something happens.

    The parameter of its test is its number of rollout pods.
    Its name comes from its test's: a job that had the name of another test's would find that one's checkpoints.
    """
    made = new_job(re.sub("[^a-z0-9]+", "-", request.node.name)[-24:].strip("-0123456789"))
    made.apply(small_job.spec(rounds=ROUNDS, rollout={"replicas": request.param, **ROLLOUT}))
    made.wait_for("Running")
    serve(made, request.param)
    made.wait_for_step(made.step() + 2)
    return made


def demand(job: Job) -> dict[str, Any]:
    rollout: dict[str, Any] = job.status().get("demand", {}).get("rollout", {})
    return rollout


def grant(job: Job) -> dict[str, Any]:
    return granted(job.status())


def granted(status: dict[str, Any]) -> dict[str, Any]:
    rollout: dict[str, Any] = status.get("allocation", {}).get("grant", {}).get("rollout", {})
    return rollout


def leaving(status: dict[str, Any]) -> set[str]:
    return {pod["pod"] for pod in granted(status).get("leaving", [])}


def scale(job: Job, replicas: int) -> None:
    job.cluster.kubectl("-n", job.namespace, "scale", "rljob", job.name, f"--replicas={replicas}")


def serve(job: Job, pods: int) -> None:
    """Waits until so many pods are ready, and no other is left."""
    job.wait(
        f"{pods} pods serve",
        lambda: (job.status()["roles"]["rollout"].get("readyText"), len(job.pod_uids("rollout"))),
        partial(eq, (f"{pods}/{pods}", pods)),
    )


def pods_that_drew(job: Job) -> set[str]:
    """Returns the pods whose engines have drawn responses."""
    return {body.engine.split("/")[0] for body in logged(job) if isinstance(body, events.Generated)}


def wait_until_none_leaves(job: Job) -> None:
    """Waits until the job has given back all pods that it had to."""
    job.wait(
        "no pod leaves any more",
        lambda: (leaving(job.status()), demand(job).get("drained")),
        lambda remaining: not any(remaining),
    )


def goes_on(job: Job) -> dict[str, Any]:
    """Waits for steps that follow, and returns what became of every prompt."""
    job.wait_for_step(job.step() + 2)
    return nothing_is_lost(job)


def logged(job: Job) -> list[events.Body | measurements.Measurement]:
    root = folder(job.cluster, job.namespace, f"{job.name}-checkpoint")
    end = newest(root)
    assert end is not None
    return [event.body for event in surviving(root, end)]


def test_kubectl_scale_adds_a_pod_and_drains_one(tail_batching_job: Job) -> None:
    before, lost = tail_batching_job.pod_uids("rollout").keys(), fates_in(tail_batching_job)["lost_samples"]
    scale(tail_batching_job, 2)
    serve(tail_batching_job, 2)
    (added,) = tail_batching_job.pod_uids("rollout").keys() - before
    tail_batching_job.wait("the new pod draws", lambda: pods_that_drew(tail_batching_job), lambda pods: added in pods)
    scale(tail_batching_job, 1)
    serve(tail_batching_job, 1)
    wait_until_none_leaves(tail_batching_job)
    assert goes_on(tail_batching_job)["lost_samples"] == lost, "nothing had to be drawn again"
    (drained,) = (before | {added}) - tail_batching_job.pod_uids("rollout").keys()
    assert drained in {body.pod for body in logged(tail_batching_job) if isinstance(body, measurements.PodDrained)}


@pytest.mark.extended
@pytest.mark.parametrize("job", [1], indirect=True)
def test_a_running_job_is_scaled_up_and_down(job: Job) -> None:
    scale(job, 3)
    job.wait("the demand", lambda: demand(job), lambda demand: demand.get("replicas") == 3)
    job.wait(
        "the grant",
        lambda: (grant(job), {"answers": demand(job)["number"], "replicas": 3}),
        lambda both: both[0] == both[1],
    )
    serve(job, 3)
    pods = job.pod_uids("rollout").keys()
    job.wait("all of them draw", lambda: pods_that_drew(job), lambda drew: pods <= drew)
    named: list[set[str]] = []
    jobs = f"/apis/longboat.dev/v1alpha1/namespaces/{job.namespace}/rljobs"
    path = f"{jobs}?fieldSelector=metadata.name={job.name}"
    with following(job.cluster, path, lambda event: named.append(leaving(event["object"].get("status", {})))):
        scale(job, 1)
        serve(job, 1)
        wait_until_none_leaves(job)
    gone = pods - job.pod_uids("rollout").keys()
    assert len(gone) == 2
    assert gone in named, "both at once"
    fates = goes_on(job)
    assert fates["lost_samples"] == 0, "nothing had to be drawn again"
    assert {body.pod for body in logged(job) if isinstance(body, measurements.PodDrained)} == gone


@pytest.mark.faults
@pytest.mark.parametrize("job", [2], indirect=True)
@pytest.mark.parametrize("word", ["is given back", "has to go"])
def test_a_pod_is_killed_while_it_goes(job: Job, word: str) -> None:
    """It is drained once it has been given back, and has to go when it has been told to end."""
    driver = job.pod("driver")
    scale(job, 1)
    delete_at_once(job, job.printed(driver, "driver", rf"pod (\S+) {word}")[1])
    serve(job, 1)
    wait_until_none_leaves(job)
    goes_on(job)


@pytest.mark.faults
@pytest.mark.parametrize("job", [1], indirect=True)
def test_pods_are_killed_while_they_come(job: Job) -> None:
    """One as soon as it is there, and its successor while its engine starts."""
    before = job.pod_uids("rollout").keys()
    scale(job, 2)

    def new() -> str:
        return "".join(job.pod_uids("rollout").keys() - before)

    first = job.wait("another pod", new)
    delete_at_once(job, first)

    def engine_starts() -> str:
        """Returns the pod that has replaced the first, if an engine starts in it, else an empty string."""
        pod = new()
        ready = pod and pod != first and job.pods()[pod]["status"]["phase"] == "Running"
        return pod if ready and ENGINE in job.processes(pod, "rollout") else ""

    delete_at_once(job, job.wait("its engine starts", engine_starts))
    serve(job, 2)
    assert grant(job) == {"answers": demand(job)["number"], "replicas": 2}
    assert goes_on(job)["lost_samples"] == 0, "nothing has run there"


@pytest.mark.faults
@pytest.mark.parametrize("job", [1], indirect=True)
def test_operator_and_driver_are_killed_between_demand_and_grant(job: Job) -> None:
    with operator_away(job.cluster):
        scale(job, 2)
        job.wait("the demand", lambda: demand(job), lambda demand: demand.get("replicas") == 2)
        before = demand(job)
        assert grant(job)["replicas"] == 1
        signal_process(job, job.pod("driver"), "driver", "longboat_runtime.cli driver")
    job.wait(
        "a new incarnation asks",
        lambda: demand(job),
        lambda demand: demand.get("incarnation", 0) > before["incarnation"],
    )
    job.wait("the grant", lambda: grant(job).get("replicas") == 2 and grant(job)["answers"] == demand(job)["number"])
    serve(job, 2)
    goes_on(job)


@pytest.mark.faults
@pytest.mark.parametrize("job", [2], indirect=True)
def test_the_api_server_is_gone_while_a_pod_is_drained(job: Job) -> None:
    step = job.step()
    scale(job, 1)
    with api_server_frozen(job):
        pass
    serve(job, 1)
    wait_until_none_leaves(job)
    fates = goes_on(job)
    assert fates["lost_samples"] == 0, "nothing had to be drawn again"
    assert job.step() > step
