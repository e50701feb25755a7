"""The driver's channel to a real API server, with a driver's rights and the admission policy."""

from __future__ import annotations

import asyncio
import base64
import json
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

import pytest
import yaml
from kubernetes.aio.client.configuration import Configuration

from e2e.cluster import Cluster
from longboat_crds.status import (
    CheckpointStatus,
    Demand,
    EnvironmentDemand,
    Incarnation,
    PoolDemand,
    Problem,
    RolloutDemand,
    Training,
    TrainingState,
)
from longboat_operator.plan.incarnations import granted
from longboat_operator.pods import access
from longboat_operator.pods.names import JobRef
from longboat_runtime.driver import kubernetes_broker
from longboat_runtime.driver.broker import Superseded
from longboat_runtime.driver.kubernetes_broker import KubernetesBroker
from longboat_runtime.driver.own_job import OwnJob, Rejected
from longboat_runtime.driver.status import DEMAND_INTERVAL, QUIET_INTERVAL, DriverStatus
from tests.driver.cuttable_link import CuttableLink
from tests.support.driver_tokens import create_namespace, driver_pod, install_policies
from tests.support.texts import UNUSUAL
from tests.support.waiting import eventually_async

pytestmark = pytest.mark.cluster

ROOT = Path(__file__).parents[2]
SPEC = {
    "runtimeRef": {"name": "tiny"},
    "model": {"path": "/models/tiny"},
    "dataset": {"files": {"paths": ["/data/train.jsonl"]}},
    "rounds": {"steps": 5, "promptsPerRound": 2},
    "rollout": {"sampling": {"maxTokens": 8}},
    "rewards": [{"name": "main", "function": "rewards:main"}],
}


def apply(cluster: Cluster, *objects: Any) -> None:
    cluster.kubectl(
        "apply", "--server-side", "-f", "-", stdin=yaml.safe_dump_all([json.loads(json.dumps(o)) for o in objects])
    )


@pytest.fixture(scope="module")
def prepared(cluster: Cluster) -> Cluster:
    for crd in sorted((ROOT / "crds").glob("*.yaml")):
        cluster.kubectl("apply", "--server-side", "-f", str(crd))
    install_policies(cluster)
    cluster.kubectl("wait", "--for=condition=Established", "crd/rljobs.longboat.dev")
    return cluster


@dataclass
class Clock:
    """Gives brokers a time that stands still, so that writes that can wait aren't made, however slow the machine is."""

    now: float = 0.0

    def __call__(self) -> float:
        return self.now


class Api:
    """The cluster as the operator and people use it, for one job."""

    def __init__(self, cluster: Cluster, namespace: str) -> None:
        self.cluster, self.namespace = cluster, namespace

    def job(self) -> dict[str, Any]:
        return json.loads(self.cluster.kubectl("get", "rljob", "job", "-n", self.namespace, "-o", "json"))

    async def shows(self, right: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
        """Waits for a state of the job, and returns it."""
        return await eventually_async(lambda: asyncio.to_thread(self.job), right)

    def patch(self, value: dict[str, Any], *flags: str) -> None:
        self.cluster.kubectl(
            "patch", "rljob", "job", "-n", self.namespace, "--type=merge", "-p", json.dumps(value), *flags
        )

    def grant(self, number: int) -> None:
        request = self.job()["status"]["demand"]["incarnationRequest"]
        incarnation = {"number": number, "request": request}
        self.patch({"status": {"allocation": {"incarnation": incarnation}}}, "--subresource=status")


@pytest.fixture
async def api(prepared: Cluster) -> AsyncIterator[Api]:
    namespace = f"broker-{uuid.uuid4().hex[:8]}"
    create_namespace(prepared, namespace)
    job = {"apiVersion": "longboat.dev/v1alpha1", "kind": "RLJob", "metadata": {"name": "job", "namespace": namespace}}
    apply(prepared, {**job, "spec": SPEC})
    made = Api(prepared, namespace)
    ref = JobRef(namespace, "job", made.job()["metadata"]["uid"])
    apply(prepared, access.driver_account(ref), access.driver_role(ref), access.driver_role_binding(ref))
    yield made
    prepared.kubectl("delete", "namespace", namespace, "--wait=false")


@pytest.fixture
async def link(prepared: Cluster) -> AsyncIterator[CuttableLink]:
    server = urlparse(yaml.safe_load(prepared.kubeconfig.read_text())["clusters"][0]["cluster"]["server"])
    made = CuttableLink(server.hostname or "", server.port or 443)
    await made.start()
    yield made
    await made.stop()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def brokers(
    api: Api, link: CuttableLink, clock: Clock, tmp_path: Path
) -> AsyncIterator[Callable[[], KubernetesBroker]]:
    """Makes brokers with the token of the driver's account; they reach the server over the link."""
    kubeconfig = yaml.safe_load(api.cluster.kubeconfig.read_text())["clusters"][0]["cluster"]
    authority = tmp_path / "ca.pem"
    authority.write_bytes(certificate(kubeconfig))
    token = await asyncio.to_thread(driver_pod, api.cluster, api.namespace, "job-driver-0-a0", "job-driver")
    made: list[KubernetesBroker] = []

    def make(after_failure: str | None = None) -> KubernetesBroker:
        configuration = Configuration(host=f"https://127.0.0.1:{link.port}", ssl_ca_cert=str(authority))
        configuration.tls_server_name = urlparse(kubeconfig["server"]).hostname
        configuration.api_key["BearerToken"] = f"Bearer {token}"
        broker = KubernetesBroker(OwnJob(configuration, api.namespace, "job"), clock, after_failure)
        made.append(broker)
        return broker

    yield make
    for broker in made:
        await broker.close()


def certificate(kubeconfig: dict[str, Any]) -> bytes:
    encoded = kubeconfig.get("certificate-authority-data")
    return base64.b64decode(encoded) if encoded else Path(kubeconfig["certificate-authority"]).read_bytes()


async def started(broker: KubernetesBroker, api: Api, number: int) -> KubernetesBroker:
    """The broker with its number, granted by a fake operator."""
    await broker.start()
    asking = asyncio.create_task(broker.incarnation(1))
    await requested(broker, api)
    api.grant(number)
    assert await asking == number
    return broker


def token_of(broker: KubernetesBroker) -> str | None:
    return broker._demand.incarnation_request


@asynccontextmanager
async def answering(
    api: Api, following: Callable[[Incarnation | None, str], Incarnation | None]
) -> AsyncIterator[None]:
    """Answers every request for a number, as an operator does, until the block ends."""

    async def answer() -> None:
        while True:
            status = (await asyncio.to_thread(api.job)).get("status", {})
            granted_last = status.get("allocation", {}).get("incarnation")
            current = granted_last and Incarnation.model_validate(granted_last)
            new = following(current, status.get("demand", {}).get("incarnationRequest", ""))
            if new and new != current:
                allocation = {"allocation": {"incarnation": new.to_json()}}
                await asyncio.to_thread(api.patch, {"status": allocation}, "--subresource=status")

    task = asyncio.create_task(answer())
    yield
    assert not task.done(), task.exception()
    task.cancel()


def next_number(current: Incarnation | None, request: str) -> Incarnation | None:
    """Returns what an operator of 0.2.0 answers, which reads no number in a request."""
    if not request or (current and current.request == request):
        return current
    return Incarnation(number=current.number + 1 if current else 1, request=request)


async def requested(broker: KubernetesBroker, api: Api) -> None:
    """Waits until the job has the broker's request for a number."""
    await api.shows(lambda job: job.get("status", {}).get("demand", {}).get("incarnationRequest") == token_of(broker))


def noting_writes(broker: KubernetesBroker) -> list[dict[str, Any]]:
    """Returns a list that collects the statuses that the broker writes from now on."""
    written: list[dict[str, Any]] = []
    apply_status = broker._own.apply_status

    async def noted(status: dict[str, Any]) -> dict[str, Any]:
        written.append(status)
        return await apply_status(status)

    broker._own.apply_status = noted  # type: ignore[method-assign, assignment]
    return written


def progress(incarnation: int, step: int, stage: str = "generate") -> DriverStatus:
    training = Training(incarnation=incarnation, state=TrainingState.RUNNING, step=step, steps=5, stage=stage)
    return DriverStatus(training, checkpoint=CheckpointStatus(incarnation=incarnation, step=step))


async def test_a_start_gets_its_number_and_writes_only_what_is_its_own(
    api: Api, brokers: Callable[[], KubernetesBroker]
) -> None:
    broker = await started(brokers(), api, 1)
    broker.publish(progress(1, 2))
    await broker.flush()
    job = api.job()
    assert (job["status"]["training"]["step"], job["status"]["checkpoint"]["step"]) == (2, 2)
    assert job["status"]["demand"] == {"incarnationRequest": token_of(broker)}
    assert job["status"]["allocation"]["incarnation"]["number"] == 1
    broker.publish(DriverStatus(progress(1, 3).training, problem=Problem(reason="StageStuck", message="train")))
    await broker.flush()
    status = api.job()["status"]
    assert status["problem"]["reason"] == "StageStuck"
    assert "checkpoint" not in status, "what is left out is gone"


async def test_a_later_start_keeps_what_the_first_wrote_and_ends_it(
    api: Api, brokers: Callable[[], KubernetesBroker]
) -> None:
    first = await started(brokers(), api, 1)
    first.publish(progress(1, 4))
    await first.flush()
    second = brokers()
    await second.start()
    asking = asyncio.create_task(second.incarnation(1))
    await requested(second, api)
    assert api.job()["status"]["training"]["step"] == 4
    assert second.previous == DriverStatus(progress(1, 4).training, checkpoint=progress(1, 4).checkpoint)
    api.grant(2)
    assert await asking == 2
    with pytest.raises(Superseded, match="driver start 2 counts"):
        await first.suspended()
    second.publish(progress(2, 4))
    await second.flush()
    first.publish(progress(1, 5))
    with pytest.raises(Superseded):
        await first.flush()
    assert api.job()["status"]["training"] == progress(2, 4).training.to_json()


async def test_a_start_that_read_an_older_status_gets_its_number_all_the_same(
    api: Api, brokers: Callable[[], KubernetesBroker], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two other starts happen between its read and its request: keeping the status it read would be rejected as outdated."""
    monkeypatch.setattr(kubernetes_broker, "BACKOFF", (0.05, 0.2))
    first = await started(brokers(), api, 1)
    first.publish(progress(1, 4))
    await first.flush()
    late = brokers()
    monkeypatch.setattr(late, "_follow", until_cancelled)
    await late.start()
    second = await started(brokers(), api, 2)
    second.publish(progress(2, 5))
    await second.flush()
    asking = asyncio.create_task(late.incarnation(1))
    await requested(late, api)
    assert api.job()["status"]["training"] == progress(2, 5).training.to_json()
    api.grant(3)
    late._take(await late._own.get())
    assert await asking == 3
    assert late.previous == DriverStatus(progress(2, 5).training, checkpoint=progress(2, 5).checkpoint)


async def until_cancelled() -> None:
    await asyncio.Event().wait()


async def test_a_start_reports_how_the_previous_one_failed_in_its_container(
    api: Api, brokers: Callable[[str], KubernetesBroker]
) -> None:
    broker = await started(brokers(f"driver exited with code 1: {UNUSUAL}" + "x" * 5000), api, 1)
    told = api.job()["status"]["demand"]["previousFailure"]
    assert told.startswith(f"driver exited with code 1: {UNUSUAL}x")
    broker.publish(progress(1, 1))
    await broker.flush()
    assert api.job()["status"]["demand"]["previousFailure"] == told


@pytest.mark.parametrize(("operator", "requests"), [(granted, 1), (next_number, 3)])
async def test_a_number_of_files_on_the_claim_is_passed_over(
    api: Api,
    brokers: Callable[[str], KubernetesBroker],
    operator: Callable[[Incarnation | None, str], Incarnation | None],
    requests: int,
) -> None:
    """The API server was restored to a time before starts 4 and 5. The failure of the previous start is told once."""
    allocation = {"incarnation": {"number": 3, "request": "of start 3"}}
    training = progress(3, 8).training.to_json()
    api.patch({"status": {"training": training, "allocation": allocation}}, "--subresource=status")
    broker = brokers("driver exited with code 1")
    await broker.start()
    written = noting_writes(broker)
    async with answering(api, operator):
        assert await broker.incarnation(6) == 6
        broker.publish(progress(6, 9))
        await broker.flush()
    demands = {status["demand"]["incarnationRequest"]: status["demand"] for status in written}
    assert len(demands) == requests
    failures = [demand.get("previousFailure") for demand in demands.values()]
    assert failures == ["driver exited with code 1", *[None] * (requests - 1)]
    assert api.job()["status"]["training"]["step"] == 9


@pytest.mark.parametrize("operator", [granted, next_number])
async def test_a_driver_that_runs_while_the_api_server_is_restored_gets_its_number_again(
    api: Api,
    link: CuttableLink,
    brokers: Callable[[], KubernetesBroker],
    operator: Callable[[Incarnation | None, str], Incarnation | None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its last status is stored again too, although it has nothing new to say."""
    monkeypatch.setattr(kubernetes_broker, "BACKOFF", (0.05, 0.2))
    broker = await started(brokers(), api, 5)
    broker.publish(asking(5, 2, 3))
    await broker.flush()
    link.cut()
    restored = {
        "training": progress(3, 0).training.to_json(),
        "checkpoint": None,
        "demand": {"incarnationRequest": "of start 3", "rollout": None},
        "allocation": {"incarnation": {"number": 3, "request": "of start 3"}},
    }
    api.patch({"status": restored}, "--subresource=status")
    link.mend()
    async with answering(api, operator):
        job = await api.shows(lambda job: job["status"]["training"]["incarnation"] == 5)
    assert job["status"]["allocation"]["incarnation"]["number"] == 5
    assert job["status"]["training"] == progress(5, 1).training.to_json()
    assert job["status"]["demand"]["rollout"] == {"incarnation": 5, "number": 2, "replicas": 3}
    broker.publish(progress(5, 2))
    await broker.flush()
    assert api.job()["status"]["training"]["step"] == 2


async def test_an_outage_is_waited_out(
    api: Api, link: CuttableLink, brokers: Callable[[], KubernetesBroker], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kubernetes_broker, "BACKOFF", (0.05, 0.2))
    broker = await started(brokers(), api, 1)
    suspended, tried = asyncio.create_task(broker.suspended()), noting_writes(broker)
    link.cut()
    for step in (1, 2, 3):
        broker.publish(progress(1, step))
        await eventually_async(lambda: tried[-1:], lambda last: last and last[0]["training"]["step"] == step)  # noqa: B023 - awaited here
    api.patch({"spec": {"suspend": True}})
    link.mend()
    await broker.flush()
    assert api.job()["status"]["training"]["step"] == 3
    await suspended


async def test_a_job_whose_version_is_too_old_for_every_watch_is_watched_from_now_on(
    api: Api, brokers: Callable[[], KubernetesBroker], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An API server that restarts, or whose CRD changes, serves no watch from before; the job has not changed since."""
    broker = brokers()
    watch, refused = broker._own.watch, 0

    async def after_a_restart(version: str | None) -> AsyncIterator[tuple[str, dict[str, Any]]]:
        nonlocal refused
        if version == first:
            refused += 1
            raise Rejected(410, "too old resource version")
        async for event in watch(version):
            yield event

    first = api.job()["metadata"]["resourceVersion"]
    monkeypatch.setattr(broker._own, "watch", after_a_restart)
    await broker.start()
    suspended = asyncio.create_task(broker.suspended())
    await eventually_async(lambda: refused)
    api.patch({"spec": {"suspend": True}})
    await suspended
    assert refused == 1


async def test_a_drain_is_told_once_for_each_time_that_it_begins(
    api: Api, brokers: Callable[[], KubernetesBroker]
) -> None:
    broker = await started(brokers(), api, 1)
    times = [f"2026-01-0{day}T00:00:00Z" for day in (1, 2)]
    since = None
    for time in times:
        drained = asyncio.create_task(broker.drained(since))
        api.patch({"status": {"drain": {"since": time, "step": 1, "nodes": ["node0"]}}}, "--subresource=status")
        since = await drained
        assert since == time
        api.patch({"status": {"drain": None}}, "--subresource=status")
        await api.shows(lambda job: "drain" not in job["status"])


async def test_a_job_that_is_deleted_ends_its_driver(api: Api, brokers: Callable[[], KubernetesBroker]) -> None:
    broker = await started(brokers(), api, 1)
    ending = asyncio.create_task(broker.suspended())
    api.cluster.kubectl("delete", "rljob", "job", "-n", api.namespace, "--wait=false")
    with pytest.raises(Superseded, match="the job was deleted"):
        await ending


async def test_only_what_matters_is_written_at_once(api: Api, brokers: Callable[[], KubernetesBroker]) -> None:
    broker = await started(brokers(), api, 1)
    written = noting_writes(broker)
    broker.publish(progress(1, 1))
    await api.shows(lambda job: job["status"].get("training", {}).get("step") == 1)
    await eventually_async(lambda: broker._stored is broker._wanted)
    broker.publish(progress(1, 1, stage="reward"))
    for _ in range(10):
        await asyncio.sleep(0)
    assert broker._due() == QUIET_INTERVAL, "a stage can wait"
    broker.publish(progress(1, 2, stage="train"))
    await api.shows(lambda job: job["status"]["training"] == progress(1, 2, stage="train").training.to_json())
    # A slow API server may get one twice.
    assert [*dict.fromkeys(status["training"]["stage"] for status in written)] == ["generate", "train"]


async def test_the_policy_rejects_a_number_that_was_not_granted(
    api: Api, brokers: Callable[[], KubernetesBroker]
) -> None:
    broker = await started(brokers(), api, 1)
    rejected: Awaitable[Any] = broker._own.apply_status(progress(7, 1).to_json())
    with pytest.raises(Rejected, match=r"is not status\.allocation"):
        await rejected


def asking(incarnation: int, number: int, replicas: int, drained: tuple[str, ...] = ()) -> DriverStatus:
    rollout = RolloutDemand(incarnation=incarnation, number=number, replicas=replicas, drained=list(drained) or None)
    return replace(progress(incarnation, 1), demand=Demand(rollout=rollout))


async def test_demands_are_written_and_grants_are_heard(
    api: Api, brokers: Callable[[], KubernetesBroker], clock: Clock
) -> None:
    broker = await started(brokers(), api, 1)
    hearing = asyncio.create_task(broker.granted(None))
    broker.publish(asking(1, 1, 2))
    job = await api.shows(lambda job: "rollout" in job["status"]["demand"])
    assert job["status"]["demand"] == {
        "rollout": {"incarnation": 1, "number": 1, "replicas": 2},
        "incarnationRequest": token_of(broker),
    }
    assert not hearing.done()
    leaving = {"pod": "job-rollout-1-a0", "deadline": "2026-01-01T00:00:00Z"}
    api.patch(
        {"status": {"allocation": {"grant": {"rollout": {"answers": 1, "replicas": 1, "leaving": [leaving]}}}}},
        "--subresource=status",
    )
    grant = await hearing
    assert (grant.answers, grant.replicas) == (1, 1)
    assert [one.pod for one in grant.leaving or ()] == ["job-rollout-1-a0"]
    clock.now += DEMAND_INTERVAL
    broker.publish(asking(1, 2, 1, ("job-rollout-1-a0",)))
    await api.shows(lambda job: job["status"]["demand"]["rollout"].get("drained") == ["job-rollout-1-a0"])


async def test_environment_pods_are_asked_for_and_granted(api: Api, brokers: Callable[[], KubernetesBroker]) -> None:
    broker = await started(brokers(), api, 1)
    hearing = asyncio.create_task(broker.granted_environments(None))
    pool = PoolDemand(name="games", replicas=3, give_first=["job-environment-games-0-a0"])
    demand = Demand(environment=EnvironmentDemand(incarnation=1, number=1, pools=[pool]))
    broker.publish(replace(progress(1, 1), demand=demand))
    job = await api.shows(lambda job: "environment" in job["status"]["demand"])
    assert job["status"]["demand"]["environment"] == {
        "incarnation": 1,
        "number": 1,
        "pools": [{"name": "games", "replicas": 3, "giveFirst": ["job-environment-games-0-a0"]}],
    }
    environment = {"answers": 1, "pools": [{"name": "games", "replicas": 2}]}
    api.patch({"status": {"allocation": {"grant": {"environment": environment}}}}, "--subresource=status")
    grant = await hearing
    assert [(pool.name, pool.replicas) for pool in grant.pools or ()] == [("games", 2)]


async def test_a_burst_of_demands_is_two_writes(
    api: Api, brokers: Callable[[], KubernetesBroker], clock: Clock
) -> None:
    """The first is written at once, and the newest two seconds later."""
    broker = await started(brokers(), api, 1)
    broker.publish(progress(1, 1))
    await broker.flush()
    written = noting_writes(broker)
    clock.now += DEMAND_INTERVAL
    broker.publish(asking(1, 1, 1))
    await eventually_async(lambda: broker._stored is broker._wanted)
    for number in range(2, 30):
        broker.publish(asking(1, number, number))
        await asyncio.sleep(0)
    clock.now += DEMAND_INTERVAL
    await eventually_async(lambda: broker._stored is broker._wanted)
    # A slow API server may get one twice.
    assert [*dict.fromkeys(status["demand"]["rollout"]["number"] for status in written)] == [1, 29]
