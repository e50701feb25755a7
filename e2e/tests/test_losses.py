"""Tests that a lost node doesn't end a job, and that a driver that keeps failing does."""

from collections.abc import Callable, Iterator
from operator import not_
from typing import Any

import pytest

from e2e import host_runtime, small_job
from e2e.cluster.node import Node
from e2e.host_runtime import HOSTNAME
from e2e.installation import NAMESPACE as SYSTEM
from e2e.jobs import Job
from e2e.prompts import nothing_is_lost
from e2e.site import Site
from tests.support.waiting import eventually

pytestmark = [pytest.mark.cluster, pytest.mark.extended]

RANKS = 4

FAULT = "the tokenizer of the reference model has another vocabulary"
# Run by every Python process of the driver's container; only the driver itself fails, at its first step and slowly.
SITECUSTOMIZE = f"""
import sys, threading, time

begun = time.monotonic()

def fail(*arguments):
    time.sleep(max(0.0, 31.0 - (time.monotonic() - begun)))
    raise RuntimeError({FAULT!r})

def wait_for_steps():
    while not hasattr(sys.modules.get("longboat_runtime.driver.steps"), "Steps"):
        time.sleep(0.05)
    sys.modules["longboat_runtime.driver.steps"].Steps.train = fail

if sys.orig_argv[1:4] == ["-m", "longboat_runtime.cli", "driver"]:
    threading.Thread(target=wait_for_steps, daemon=True).start()
"""


@pytest.fixture(scope="module")
def doomed(site: Site) -> Iterator[Node]:
    """Yields a node on which the operator does not run; it is back after the tests."""
    listed = site.cluster.api.get(f"/api/v1/namespaces/{SYSTEM}/pods") or {}
    spared = {pod["spec"].get("nodeName") for pod in listed.get("items", [])}
    node = next(node for node in site.cluster.nodes if node.name not in spared)
    yield node
    node.power_off()
    node.power_on()
    eventually(lambda: node.ready(site.cluster.api))


@pytest.fixture(scope="module", autouse=True)
def failing(site: Site, doomed: Node) -> Iterator[Job]:
    """Yields a job each of whose drivers fails at its first step, on the node that isn't lost.

    It takes its time, so it begins before the tests of this module.
    """
    folder = site.data / "faults"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(SITECUSTOMIZE)
    (other,) = (node.name for node in site.cluster.nodes if node is not doomed)

    def spoil(specs: dict[str, Any]) -> None:
        specs["driver"]["containers"][0]["env"].append({"name": "PYTHONPATH", "value": f"{host_runtime.DATA}/faults"})
        for spec in specs.values():
            spec["nodeSelector"] = {HOSTNAME: other}
            for container in spec["containers"]:
                container["resources"]["requests"]["cpu"] = "50m"

    job = Job(site.cluster, site.namespace, "slow-failure")
    limit = {"maxDriverRestarts": 1}
    job.apply(small_job.spec(site.apply_runtime("slow-failure", spoil), failurePolicy=limit))
    yield job
    job.delete()


def test_a_job_goes_on_after_the_node_of_its_four_trainer_pods(
    site: Site, doomed: Node, new_job: Callable[[str], Job]
) -> None:
    (other,) = (node.name for node in site.cluster.nodes if node is not doomed)

    def place(specs: dict[str, Any]) -> None:
        """Puts trainers on the node that will be lost, as long as it takes pods, and all other pods on the other one."""
        for role, spec in specs.items():
            if role != "trainer":
                spec["nodeSelector"] = {HOSTNAME: other}
        term = {"matchExpressions": [{"key": HOSTNAME, "operator": "In", "values": [doomed.name]}]}
        preferred = {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 100, "preference": term}]}
        trainer = specs["trainer"]
        trainer["affinity"] = {"nodeAffinity": preferred}
        trainer["containers"][0]["resources"]["requests"]["cpu"] = "100m"
        trainer["tolerations"] = [
            {"key": f"node.kubernetes.io/{key}", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 2}
            for key in ("not-ready", "unreachable")
        ]

    job = new_job("node-lost")
    spec = small_job.spec(
        site.apply_runtime("node-lost", place),
        rounds={"policy": "TailBatching", "steps": 100_000, "promptsPerRound": 4},
        failurePolicy={"maxTrainerRestarts": 1, "backoffSeconds": 1},
    )
    spec["trainer"]["replicas"] = RANKS
    job.apply(spec)
    step = job.wait_for_step(3)
    trainers = job.pod_uids("trainer")
    assert {pod["spec"]["nodeName"] for name, pod in job.pods().items() if name in trainers} == {doomed.name}
    doomed.power_off()
    job.wait(
        "four new trainer pods", lambda: job.pod_uids("trainer").keys() - trainers.keys(), lambda new: len(new) == RANKS
    )
    job.wait_for_step(step + 3)
    role = job.status()["roles"]["trainer"]
    assert role["restarts"] >= RANKS
    assert role["recentRestarts"] <= 1
    restarts = [r for r in job.status()["restartHistory"] if r["pod"] in trainers]
    assert {(r["node"], r["counted"]) for r in restarts} == {(doomed.name, False)}
    nothing_is_lost(job)


def test_a_driver_that_fails_at_its_first_step_for_ever_ends_its_job(failing: Job) -> None:
    failed = failing.wait_for_failure()
    assert failed["reason"] == "RestartLimitExceeded"
    assert "role driver failed 2 times before the first step was committed" in failed["message"]
    assert "failurePolicy.maxDriverRestarts: 1" in failed["message"]
    assert FAULT in failed["message"]
    assert failing.step() == 0
    eventually(failing.pods, not_)
