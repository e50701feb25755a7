"""Engines that change shape with the lengths of responses: real vLLM of one and of two devices, in pods of their own."""

import re
from collections.abc import Callable
from functools import partial
from operator import eq
from typing import Any

import pytest

from e2e import countdown_job
from e2e.countdown_job import LONG, SHORT
from e2e.harm import delete_at_once, signal_process
from e2e.jobs import Job
from e2e.prompts import nothing_is_lost
from e2e.site import Site
from longboat_runtime.rollout.protocol import ReshapePhase

pytestmark = pytest.mark.cluster

# Rounds with more responses than engines of one device hold, long enough to try larger ones.
GROWING = (SHORT, LONG, LONG, LONG, SHORT)
# Rounds whose engines have work at any time.
STAYING = (SHORT, LONG, LONG, LONG, LONG, LONG, LONG)

# What the driver prints when a change of shape begins, and the command line of a worker process of an engine of several devices.
BEGUN, WORKER = "engines are reshaped", re.compile("multiprocessing.spawn|Worker_TP")


@pytest.fixture(scope="module")
def runtime(site: Site) -> str:
    """Makes a runtime template whose pods have shared memory for two publications of 101 MB; the data of `countdown_job` is there."""
    countdown_job.write_data(site.data, {"growing": GROWING, "staying": STAYING})

    def enlarge(specs: dict[str, Any]) -> None:
        for role in ("rollout", "trainer"):
            specs[role]["volumes"].append({"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "512Mi"}})

    return site.apply_runtime("countdown", enlarge)


def tensor_parallel(job: Job) -> int:
    return int(job.status().get("training", {}).get("tensorParallel", 0))


def test_engines_are_reshaped_when_nothing_is_preempted(elastic_job: Job) -> None:
    pods = elastic_job.pod_uids()
    elastic_job.patch({"rollout": {"parallelism": {"mode": "Fixed"}}})
    elastic_job.wait("engines of two devices", lambda: tensor_parallel(elastic_job), partial(eq, 2))
    elastic_job.patch({"rollout": {"parallelism": {"mode": "Adaptive"}}})
    elastic_job.wait("engines of one device", lambda: tensor_parallel(elastic_job), partial(eq, 1))
    training = elastic_job.wait(
        "a round of engines of one device",
        lambda: elastic_job.status()["training"],
        lambda training: training["recentRounds"][-1]["tensorParallel"] == 1,
    )
    change = training["reshapes"][-1]
    assert (change["tensorParallel"], change.get("failure")) == (1, None)
    assert change["reason"] == (
        "2 short rounds had no preemptions, and 1 is untried for such rounds: 2 -> 1 devices per engine"
    )
    assert tensor_parallel_shown(elastic_job) == "1"
    assert elastic_job.pod_uids() == pods
    assert nothing_is_lost(elastic_job)["lost_samples"] == 0


@pytest.mark.extended
def test_engines_are_reshaped_when_responses_grow(runtime: str, new_job: Callable[[str], Job]) -> None:
    job = new_job("growing")
    job.apply(countdown_job.spec(runtime, "growing", {"steps": len(GROWING)}))
    job.wait("engines of two devices", lambda: tensor_parallel(job), partial(eq, 2))
    assert tensor_parallel_shown(job) == "2"
    job.wait_for("Succeeded")
    training = job.status()["training"]
    rounds = training["recentRounds"]
    (change,) = training["reshapes"]
    assert (change["tensorParallel"], change.get("failure")) == (2, None)
    assert change["reason"] == (
        "2 short rounds had many preemptions, and 2 is untried for such rounds: 1 -> 2 devices per engine"
    )
    shapes = [summary["tensorParallel"] for summary in rounds]
    assert shapes == sorted(shapes)
    assert {*shapes} == {1, 2}
    before, after = (
        max(summary["preemptions"] for summary in rounds if summary["tensorParallel"] == size) for size in (1, 2)
    )
    assert before > after > 0, "the same lengths in another shape"
    assert change["reason"] in job.cluster.kubectl("-n", job.namespace, "describe", "rljob", job.name)
    assert tensor_parallel_shown(job) == "2"
    fates = nothing_is_lost(job)
    assert fates["lost_samples"] == 0
    assert fates["ended"] == len(GROWING) * countdown_job.PROMPTS


@pytest.mark.faults
@pytest.mark.parametrize("phase", [ReshapePhase.END, ReshapePhase.START, ReshapePhase.WEIGHTS])
def test_a_pod_is_lost_while_its_engines_are_reshaped(
    phase: ReshapePhase, runtime: str, new_job: Callable[[str], Job]
) -> None:
    """Nothing runs meanwhile: rounds are on-policy. The next pod's engines have the new shape."""
    job = new_job(f"pod-lost-{phase}")
    job.apply(countdown_job.spec(runtime, "growing", {"steps": len(GROWING)}))
    delete_at_once(job, reshaped(job, phase))
    job.wait_for("Succeeded")
    fates = settled(job)
    assert fates["lost_samples"] == 0
    assert fates["ended"] == len(GROWING) * countdown_job.PROMPTS


@pytest.mark.faults
@pytest.mark.parametrize("phase", ReshapePhase)
def test_a_pod_is_lost_while_engines_are_reshaped_pod_by_pod(
    phase: ReshapePhase, runtime: str, new_job: Callable[[str], Job]
) -> None:
    """Once its engines are drained, their responses have moved to another pod, and continue there."""
    job = new_job(f"one-of-two-lost-{phase}")
    rounds = {"policy": "BoundedAsync", "maxStaleness": 2, "steps": len(STAYING)}
    job.apply(countdown_job.spec(runtime, "staying", rounds, replicas=2))
    delete_at_once(job, reshaped(job, phase))
    job.wait_for("Succeeded")
    fates = settled(job)
    assert fates["moved_samples"] > 0 or phase is ReshapePhase.DRAIN
    assert fates["ended"] == len(STAYING) * countdown_job.PROMPTS


@pytest.mark.faults
def test_all_that_runs_in_a_pod_that_has_taken_moved_responses_is_killed(
    runtime: str, new_job: Callable[[str], Job]
) -> None:
    job = new_job("other-pod-lost")
    rounds = {"policy": "BoundedAsync", "maxStaleness": 2, "steps": len(STAYING)}
    job.apply(countdown_job.spec(runtime, "staying", rounds, replicas=2))
    # Its engines end once they are drained: what ran there has just moved.
    drained = reshaped(job, ReshapePhase.END)
    (other,) = job.pod_uids("rollout").keys() - {drained}
    signal_process(job, other, "rollout", "ray")
    job.wait_for("Succeeded")
    fates = settled(job)
    assert fates["moved_samples"] > 0
    assert fates["lost_samples"] > 0, "they ran there"
    assert fates["ended"] == len(STAYING) * countdown_job.PROMPTS


@pytest.mark.faults
@pytest.mark.parametrize("policy", ["Synchronous", "BoundedAsync"])
def test_a_driver_that_is_killed_while_engines_are_reshaped(
    policy: str, runtime: str, new_job: Callable[[str], Job]
) -> None:
    job = new_job(f"driver-killed-{policy.lower()}")
    job.apply(countdown_job.spec(runtime, "staying", {"policy": policy, "steps": len(STAYING)}))
    starting(job)
    signal_process(job, job.pod("driver"), "driver", "longboat agent driver")
    job.wait_for("Succeeded")
    fates = settled(job)
    assert fates["incarnations"] == 2
    assert fates["ended"] == len(STAYING) * countdown_job.PROMPTS


def reshaped(job: Job, phase: ReshapePhase) -> str:
    """Changes the shape of a running job, waits until a pod's reshape is in this phase, and returns the pod.

    Engines that start have their processes then.
    """
    if phase is ReshapePhase.START:
        return starting(job)
    enlarge_engines(job)
    return job.printed(job.pod("driver"), "driver", rf"reshape of (\S+): {phase}$")[1]


def enlarge_engines(job: Job) -> None:
    """Edits a running job that has engines of one device: from the next round on they have two."""
    job.wait_for_step(1)
    job.patch({"rollout": {"parallelism": {"minTensorParallel": 2}}})


def starting(job: Job) -> str:
    """Changes the shape of a running job, waits until an engine of two devices is being started, and returns its pod."""

    def pods_with_workers() -> list[str]:
        return [pod for pod in job.pod_uids("rollout") if WORKER.search(job.processes(pod, "rollout"))]

    enlarge_engines(job)
    job.printed(job.pod("driver"), "driver", BEGUN)
    pod: str = job.wait("an engine starts in another shape", pods_with_workers)[0]
    assert not job.status()["training"].get("reshapes"), "it has not been reported, so it goes on"
    return pod


def settled(job: Job) -> dict[str, Any]:
    """Returns what became of a job's prompts; asserts that its engines have the wanted shape and that nothing is lost without trace."""
    training = job.status()["training"]
    assert training["tensorParallel"] == 2
    assert not [change for change in training.get("reshapes", []) if change.get("failure")]
    return nothing_is_lost(job)


def tensor_parallel_shown(job: Job) -> str:
    """Reads column TP of `kubectl get rljobs`."""
    titles, values = job.cluster.kubectl("-n", job.namespace, "get", "rljobs", job.name).splitlines()
    start = titles.index(" TP ") + 1
    return values[start:].split()[0]
