"""Engines that change shape with the lengths of responses: real vLLM of one and of two devices, in pods of their own."""

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
# Rounds without preemptions, after which engines of two devices become engines of one, and rounds that run meanwhile and afterwards.
SHRINKING = (SHORT, SHORT, SHORT, LONG, LONG, LONG, LONG)

# The first shape of rollout pods of jobs whose engines become smaller.
LARGE_ENGINES = {"enginesPerPod": 1, "tensorParallel": 2}


@pytest.fixture(scope="module")
def runtime(site: Site) -> str:
    """Writes the jobs' data, and applies a runtime template whose rollout and trainer pods have 512 MiB of shared memory."""
    countdown_job.write_data(site.data, {"growing": GROWING, "shrinking": SHRINKING})

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
    job.apply(countdown_job.spec(runtime, "shrinking", {"steps": len(SHRINKING)}, **LARGE_ENGINES))
    delete_at_once(job, reshaped(job, phase))
    job.wait_for("Succeeded")
    fates = settled(job)
    assert fates["lost_samples"] == 0
    assert fates["ended"] == len(SHRINKING) * countdown_job.PROMPTS


@pytest.mark.faults
@pytest.mark.parametrize("phase", ReshapePhase)
def test_a_pod_is_lost_while_engines_are_reshaped_pod_by_pod(
    phase: ReshapePhase, runtime: str, new_job: Callable[[str], Job]
) -> None:
    """Once its engines are drained, their responses have moved to another pod, and continue there."""
    job = new_job(f"one-of-two-lost-{phase}")
    rounds = {"policy": "BoundedAsync", "maxStaleness": 2, "steps": len(SHRINKING)}
    job.apply(countdown_job.spec(runtime, "shrinking", rounds, replicas=2, **LARGE_ENGINES))
    delete_at_once(job, reshaped(job, phase))
    job.wait_for("Succeeded")
    fates = settled(job)
    assert fates["moved_samples"] > 0 or phase is ReshapePhase.DRAIN
    assert fates["ended"] == len(SHRINKING) * countdown_job.PROMPTS


@pytest.mark.faults
def test_all_that_runs_in_a_pod_that_has_taken_moved_responses_is_killed(
    runtime: str, new_job: Callable[[str], Job]
) -> None:
    job = new_job("other-pod-lost")
    rounds = {"policy": "BoundedAsync", "maxStaleness": 2, "steps": len(SHRINKING)}
    job.apply(countdown_job.spec(runtime, "shrinking", rounds, replicas=2, **LARGE_ENGINES))
    # Its engines end once they are drained: what ran there has just moved.
    drained = reshaped(job, ReshapePhase.END)
    (other,) = job.pod_uids("rollout").keys() - {drained}
    signal_process(job, other, "rollout", "ray")
    job.wait_for("Succeeded")
    fates = settled(job)
    assert fates["moved_samples"] > 0
    assert fates["lost_samples"] > 0, "they ran there"
    assert fates["ended"] == len(SHRINKING) * countdown_job.PROMPTS


@pytest.mark.faults
@pytest.mark.parametrize("policy", ["Synchronous", "BoundedAsync"])
def test_a_driver_that_is_killed_while_engines_are_reshaped(
    policy: str, runtime: str, new_job: Callable[[str], Job]
) -> None:
    job = new_job(f"driver-killed-{policy.lower()}")
    job.apply(countdown_job.spec(runtime, "shrinking", {"policy": policy, "steps": len(SHRINKING)}, **LARGE_ENGINES))
    reshaped(job, ReshapePhase.START)
    signal_process(job, job.pod("driver"), "driver", "longboat agent driver")
    job.wait_for("Succeeded")
    fates = settled(job)
    assert fates["incarnations"] == 2
    assert fates["ended"] == len(SHRINKING) * countdown_job.PROMPTS


def reshaped(job: Job, phase: ReshapePhase) -> str:
    """Waits until the driver prints that a pod's reshape has reached this phase; returns the pod's name."""
    job.wait_for_step(1)
    pod = job.printed(job.pod("driver"), "driver", rf"reshape of (\S+): {phase}$")[1]
    assert not job.status()["training"].get("reshapes"), "it has not been reported, so it goes on"
    return pod


def settled(job: Job) -> dict[str, Any]:
    """Returns what became of a job's prompts; asserts that its engines have the wanted shape and that nothing is lost without trace."""
    training = job.status()["training"]
    assert training["tensorParallel"] == 1
    assert [change.get("failure") for change in training["reshapes"]] == [None]
    return nothing_is_lost(job)


def tensor_parallel_shown(job: Job) -> str:
    """Reads column TP of `kubectl get rljobs`."""
    titles, values = job.cluster.kubectl("-n", job.namespace, "get", "rljobs", job.name).splitlines()
    start = titles.index(" TP ") + 1
    return values[start:].split()[0]
