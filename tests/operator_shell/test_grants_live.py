"""Demand and grant of rollout pods, by the real plans on a real API server, with the driver's part played by the test."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from e2e.cluster import Cluster
from longboat_operator.kube.client import MERGE_PATCH, KubeClient
from longboat_operator.kube.errors import ConflictError
from longboat_operator.kube.resources import POD, RL_JOB
from longboat_operator.model import (
    FIELD_MANAGER,
    GRANT_FIELD_MANAGER,
    LABEL_ROLE,
    REQUEST_TIMEOUT_SECONDS,
    CapacityKey,
    Observed,
    PublishGrant,
)
from longboat_operator.plan import capacity, reward_cpus
from longboat_operator.watch.cache import Cache
from longboat_operator.writes import Writes
from tests.operator_shell.conftest import create_runtime
from tests.operator_shell.test_surroundings_live import Bench
from tests.support.waiting import DEADLINE_SECONDS, eventually_async

pytestmark = pytest.mark.cluster

PATIENCE_SECONDS = 2 * DEADLINE_SECONDS


@pytest.fixture
async def bench(cluster: Cluster, admin: KubeClient, namespace: str, monkeypatch: pytest.MonkeyPatch) -> Bench:
    """Makes a bench whose plans wait as long as a test needs to act as the driver or the node."""
    monkeypatch.setattr(capacity, "LEAVE_SECONDS", PATIENCE_SECONDS)
    for name in ("SILENT_SECONDS", "FIRST_PIN_SECONDS", "LONGEST_PIN_SECONDS"):
        monkeypatch.setattr(reward_cpus, name, PATIENCE_SECONDS)
    # No former leader has anything under way.
    monkeypatch.setattr(reward_cpus, "AFTER_REQUEST_SECONDS", 1.0 - REQUEST_TIMEOUT_SECONDS)
    await create_runtime(admin, namespace)
    return Bench(cluster, admin, namespace)


class Driver:
    """What a driver writes of job `x`, with its field manager."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self._demand: dict[str, Any] = {"incarnationRequest": "token"}

    async def start(self) -> None:
        await self._apply({"demand": self._demand})
        await eventually_async(self._is_first)
        await self.ask()

    async def ask(self, **rollout: Any) -> None:
        """Publishes a demand for rollout pods, if one is given, with all other fields of its own."""
        if rollout:
            self._demand = {**self._demand, "rollout": {"incarnation": 1, **rollout}}
        await self.report()

    async def report(self, **more: Any) -> None:
        """Publishes that it trains, and further fields of its own."""
        training = {"incarnation": 1, "state": "Running", "step": 1}
        await self._apply({"training": training, "demand": self._demand, **more})

    async def ask_environments(self, **environment: Any) -> None:
        """Publishes a demand for environment pods."""
        self._demand = {**self._demand, "environment": {"incarnation": 1, **environment}}
        await self.ask()

    async def ask_cpus(self, **reward: Any) -> None:
        """Publishes a demand for CPUs of reward pods."""
        self._demand = {**self._demand, "reward": {"incarnation": 1, **reward}}
        await self.ask()

    async def _apply(self, status: dict[str, Any]) -> None:
        metadata = {"namespace": self._bench.namespace, "name": "x"}
        body = {"apiVersion": RL_JOB.api_version, "kind": "RLJob", "metadata": metadata, "status": status}
        await self._bench.admin.apply(RL_JOB, body, subresource="status", manager="longboat-driver")

    async def _is_first(self) -> bool:
        return bool((await allocation(self._bench)).get("incarnation"))


async def allocation(bench: Bench) -> dict[str, Any]:
    found: dict[str, Any] = (await bench.get(RL_JOB, "x")).get("status", {}).get("allocation", {})
    return found


def grants(bench: Bench, answers: int | None, replicas: int, *leaving: str) -> Callable[[], Awaitable[bool]]:
    async def check() -> bool:
        grant = (await allocation(bench)).get("grant", {}).get("rollout", {})
        names = [each["pod"] for each in grant.get("leaving", ())]
        return (grant.get("answers"), grant.get("replicas"), names) == (answers, replicas, list(leaving))

    return check


def has(bench: Bench, *names: str) -> Callable[[], Awaitable[bool]]:
    async def check() -> bool:
        pods = await bench.all(POD)
        return {name for name, pod in pods.items() if pod["metadata"]["labels"][LABEL_ROLE] == "rollout"} == set(names)

    return check


async def all_ready(bench: Bench) -> None:
    """Says what kubelets would say of pods that run."""
    condition = {"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}
    patch = {"status": {"phase": "Running", "conditions": [condition]}}
    for name in await bench.all(POD):
        await bench.admin.patch(POD, bench.namespace, name, patch, MERGE_PATCH, subresource="status")


def owned(job: dict[str, Any], manager: str) -> dict[str, Any]:
    """The status fields that a manager has applied."""
    return next(
        (
            entry["fieldsV1"].get("f:status", {})
            for entry in job["metadata"]["managedFields"]
            if entry["manager"] == manager and entry["operation"] == "Apply"
        ),
        {},
    )


async def test_pods_come_and_leave_as_the_driver_asks_whichever_operator_serves(bench: Bench) -> None:
    first, second, third = (f"x-rollout-{index}-a0" for index in range(3))
    driver = Driver(bench)
    async with bench.operator():
        await bench.submit("x")
        await bench.edit("x", rollout={"replicas": 3})
        await eventually_async(has(bench, first, second, third))
        await all_ready(bench)
        await driver.start()
        await driver.ask(number=1, replicas=1, giveFirst=[first], reason="short rounds wait for nothing")
        await eventually_async(grants(bench, 1, 1, first, third))
        job = await bench.get(RL_JOB, "x")
        assert set(owned(job, GRANT_FIELD_MANAGER)) == {"f:allocation"}
        assert set(owned(job, GRANT_FIELD_MANAGER)["f:allocation"]) == {"f:grant"}
        assert "f:grant" not in owned(job, FIELD_MANAGER)["f:allocation"]
        deadlines = job["status"]["allocation"]["grant"]
    async with bench.operator():
        await driver.ask(number=2, replicas=1, giveFirst=[first], drained=[first])
        await eventually_async(grants(bench, 2, 1, third))
        await eventually_async(has(bench, second, third))
        found = await allocation(bench)
        assert found["incarnation"] == {"number": 1, "request": "token"}
        assert found["grant"]["rollout"]["leaving"] == deadlines["rollout"]["leaving"][1:], "with its first deadline"
        await driver.ask(number=3, replicas=3)
        await eventually_async(grants(bench, 3, 3))
        await eventually_async(has(bench, "x-rollout-0-a1", second, third))
        status = (await bench.get(RL_JOB, "x"))["status"]
        assert (status["restarts"], status.get("restartHistory")) == (0, None)


async def test_a_suspended_job_has_no_grant_and_keeps_its_incarnation(bench: Bench) -> None:
    driver = Driver(bench)
    async with bench.operator():
        await bench.submit("x")
        await eventually_async(has(bench, "x-rollout-0-a0"))
        await all_ready(bench)
        await driver.start()
        await driver.ask(number=1, replicas=1)
        await eventually_async(grants(bench, 1, 1))
        for name, pod in (await bench.all(POD)).items():
            if pod["metadata"]["labels"][LABEL_ROLE] == "driver":
                await bench.admin.delete(POD, bench.namespace, name, pod["metadata"]["uid"], 0)
        await bench.edit("x", suspend=True)

        async def without_grant() -> bool:
            return set(await allocation(bench)) == {"incarnation", "rolloutReplicas"}

        await eventually_async(without_grant)
        await bench.edit("x", suspend=False)
        await eventually_async(grants(bench, None, 1))
        await eventually_async(has(bench, "x-rollout-0-a1"))


async def test_a_grant_derived_from_an_old_job_is_refused(bench: Bench, admin: KubeClient) -> None:
    await bench.submit("x")
    old = await bench.get(RL_JOB, "x")
    await bench.edit("x", rollout={"replicas": 3})
    events: Any = None  # no event is written
    writes = Writes(admin, Cache(), events, Observed(CapacityKey(bench.namespace, "x"), old))
    with pytest.raises(ConflictError):
        await writes.execute(PublishGrant({"rollout": {"replicas": 1}}))
    assert "status" not in await bench.get(RL_JOB, "x")
