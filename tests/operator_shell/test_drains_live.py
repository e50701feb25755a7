"""Nodes that are cordoned, drained and deleted, by the real plan on a real API server; the test plays driver, kubelets and garbage collector."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import datetime
from functools import partial
from typing import Any

import pytest
from kubernetes.aio.client.configuration import Configuration

from longboat_operator.kube.client import MERGE_PATCH
from longboat_operator.kube.config import load_configuration
from longboat_operator.kube.errors import NotFoundError
from longboat_operator.kube.resources import CORDONED_NODE, DISRUPTION_BUDGET, POD, RL_JOB
from longboat_operator.model import Observed, Plan
from longboat_operator.observe import observe
from longboat_operator.planner import plan
from longboat_operator.shell import Options, Shell
from longboat_operator.watch import informer
from tests.operator_shell.conftest import open_shell, running
from tests.operator_shell.gateway import Gateway
from tests.operator_shell.small_plan import manifest
from tests.operator_shell.test_grants_live import Driver, all_ready, bench
from tests.operator_shell.test_reward_cpus_live import bind, fake_node
from tests.operator_shell.test_surroundings_live import Bench
from tests.support.ports import free_port
from tests.support.waiting import eventually_async

__all__ = ["bench", "fake_node"]

pytestmark = pytest.mark.cluster

DRIVER, TRAINER = "x-driver-0-a0", "x-trainer-0-a0"


@asynccontextmanager
async def operator(bench: Bench, configuration: Configuration | None = None) -> AsyncIterator[Shell]:
    """The real operator of a whole cluster, which may watch nodes; it plans for the test's own jobs alone."""

    def own(observed: Observed, now: datetime) -> Plan:
        return plan(observed, now) if observed.key.namespace == bench.namespace else Plan()

    options = Options((), None, free_port(), free_port())
    way = configuration or await load_configuration(bench.cluster.kubeconfig)
    async with running(open_shell(way, options, observe, own)) as shell:
        yield shell


async def submit(bench: Bench) -> None:
    """Job `x`, whose pods a test gives to the fake node."""
    body = manifest(bench.namespace, "x")
    body["spec"] |= {"runtimeRef": {"kind": "RLRuntime", "name": "fake"}, "checkpoint": {"everySteps": 1000}}
    await bench.admin.create(RL_JOB, body)


async def train(bench: Bench, node: str) -> Driver:
    """Brings the job to step 1, with driver and trainer on the node."""
    await eventually_async(bench.has_pods("x", 4))
    await bind(bench, node, DRIVER, TRAINER)
    await all_ready(bench)
    driver = Driver(bench)
    await driver.start()
    return driver


def keeps(bench: Bench, pods: int | None) -> Callable[[], Any]:
    """Whether the job's budget keeps so many pods; None: whether there is no budget."""

    async def check() -> bool:
        try:
            budget = await bench.get(DISRUPTION_BUDGET, "x")
        except NotFoundError:
            return pods is None
        return bool(budget["spec"]["minAvailable"] == pods)

    return check


async def cordon(bench: Bench, node: str, *, cordoned: bool) -> None:
    await bench.admin.patch(CORDONED_NODE, "", node, {"spec": {"unschedulable": cordoned}}, MERGE_PATCH)


async def drain(bench: Bench) -> Any:
    return (await bench.get(RL_JOB, "x")).get("status", {}).get("drain")


async def drain_is_over(bench: Bench) -> bool:
    return await drain(bench) is None


async def test_a_cordoned_node_has_the_driver_save_and_then_the_budget_opens(bench: Bench, fake_node: str) -> None:
    async with operator(bench):
        await submit(bench)
        driver = await train(bench, fake_node)
        await eventually_async(keeps(bench, 2))
        budget = await bench.get(DISRUPTION_BUDGET, "x")
        assert budget["spec"]["unhealthyPodEvictionPolicy"] == "AlwaysAllow"
        assert [owner["kind"] for owner in budget["metadata"]["ownerReferences"]] == ["RLJob"]
        await cordon(bench, fake_node, cordoned=True)
        noted = await eventually_async(lambda: drain(bench))
        assert (noted["step"], noted["nodes"]) == (1, [fake_node])
        assert await keeps(bench, 2)()
        await driver.report(checkpoint={"incarnation": 1, "step": 1})
        await eventually_async(keeps(bench, 0))
        await cordon(bench, fake_node, cordoned=False)
        await eventually_async(keeps(bench, 2))
        await eventually_async(partial(drain_is_over, bench))  # the budget is written before the status
    described = bench.cluster.kubectl("-n", bench.namespace, "describe", "rljob", "x")
    assert "NodeCordoned" in described


async def test_a_pod_that_is_marked_and_deleted_in_the_same_moment_is_not_counted(bench: Bench, fake_node: str) -> None:
    """As the pod garbage collector does it once a Node object is gone."""
    gone = {"type": "DisruptionTarget", "status": "True", "reason": "DeletionByPodGC"}
    async with operator(bench):
        await submit(bench)
        await train(bench, fake_node)

        async def is_recorded() -> Any:
            roles = (await bench.get(RL_JOB, "x"))["status"]["roles"]
            return "intact" in roles["trainer"]

        await eventually_async(is_recorded)
        uid = (await bench.get(POD, TRAINER))["metadata"]["uid"]
        status = {"status": {"phase": "Failed", "conditions": [gone]}}
        await bench.admin.patch(POD, bench.namespace, TRAINER, status, MERGE_PATCH, subresource="status")
        await bench.admin.delete(POD, bench.namespace, TRAINER, uid, 0)

        async def history() -> Any:
            return (await bench.get(RL_JOB, "x"))["status"].get("restartHistory")

        [record] = await eventually_async(history)
        assert (record["pod"], record["reason"], record["counted"]) == (TRAINER, "NodeLost", False)


async def test_an_operator_that_may_not_watch_nodes_serves_jobs_without_a_budget(
    bench: Bench, fake_node: str, gateway: tuple[Gateway, Configuration], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(informer, "_LONGEST_WAIT_SECONDS", 0.5)
    way, configuration = gateway
    way.refuse(lambda request: 403 if request.path.endswith("/nodes") else None)
    async with operator(bench, configuration) as shell:
        await submit(bench)
        await train(bench, fake_node)

        async def trains() -> bool:
            return bool((await bench.get(RL_JOB, "x"))["status"]["phase"] == "Running")

        await eventually_async(trains)
        assert await keeps(bench, None)()
        assert [source.kind for source in shell._freshness.failing] == ["Node"]
        way.mend()
        await eventually_async(keeps(bench, 2))
        assert not shell._freshness.failing
