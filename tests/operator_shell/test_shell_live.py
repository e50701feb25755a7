"""The whole shell, with a small planner, on a real API server."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import datetime
from functools import partial
from typing import Any

import pytest
from aiohttp import ClientSession
from kubernetes.aio.client.configuration import Configuration

from e2e.cluster import Cluster
from longboat_operator.controller import MakePlan
from longboat_operator.kube.client import MERGE_PATCH, KubeClient, WatchEvent
from longboat_operator.kube.config import load_configuration
from longboat_operator.kube.resources import EVENT, LEASE, POD, RL_JOB, SECRET, SERVICE, Resource
from longboat_operator.kube.transport import Request
from longboat_operator.lease import LeadershipLostError
from longboat_operator.metrics import API_REQUESTS
from longboat_operator.model import LABEL_JOB, JobKey, Observed, Plan
from longboat_operator.shell import Options, Shell
from longboat_operator.watch.cache import ObjectKey, Source
from tests.operator_shell import small_plan
from tests.operator_shell.conftest import lease, open_shell, running
from tests.operator_shell.gateway import Gateway
from tests.support.loop_time import pass_time
from tests.support.ports import free_port
from tests.support.waiting import eventually_async

pytestmark = pytest.mark.cluster

QUOTA = Resource("ResourceQuota", "resourcequotas")


class Bench:
    """A namespace with jobs in it, and a shell that serves it."""

    def __init__(self, cluster: Cluster, admin: KubeClient, namespace: str) -> None:
        self.cluster = cluster
        self.admin = admin
        self.namespace = namespace
        self.options = Options((namespace,), lease(namespace), free_port(), free_port())

    async def shell(self, plan: MakePlan = small_plan.plan) -> Shell:
        configuration = await load_configuration(self.cluster.kubeconfig)
        return open_shell(configuration, self.options, small_plan.observe, plan)

    @asynccontextmanager
    async def running(self, plan: MakePlan = small_plan.plan) -> AsyncIterator[Shell]:
        async with running(await self.shell(plan)) as shell:
            yield shell

    async def submit(self, name: str, pods: int = 2) -> dict[str, Any]:
        return await self.admin.create(RL_JOB, small_plan.manifest(self.namespace, name, pods))

    async def job(self, name: str) -> dict[str, Any]:
        return await self.admin.get(RL_JOB, self.namespace, name)

    async def delete(self, name: str) -> None:
        job = await self.job(name)
        await self.admin.delete(RL_JOB, self.namespace, name, job["metadata"]["uid"])

    async def wants(self, name: str, pods: int) -> None:
        patch = {"metadata": {"annotations": {small_plan.PODS: str(pods)}}}
        await self.admin.patch(RL_JOB, self.namespace, name, patch, MERGE_PATCH)

    async def all(self, resource: Resource) -> dict[str, dict[str, Any]]:
        pages = self.admin.list_pages(resource, self.namespace)
        return {item["metadata"]["name"]: item async for page in pages for item in page.items}

    async def report(self, name: str, step: int) -> None:
        """What a driver writes at the end of a round."""
        status = {"training": {"incarnation": 1, "state": "Running", "step": step}}
        body = {"apiVersion": RL_JOB.api_version, "kind": "RLJob", "metadata": {"name": name}, "status": status}
        query = {"fieldManager": "longboat-driver", "force": "true"}
        path = RL_JOB.path(self.namespace, name, "status")
        request = Request("PATCH", path, "apply", "rljobs/status", query, body, "application/apply-patch+yaml")
        await self.admin._transport.send(request)

    def knows_step(self, shell: Shell, name: str, step: int) -> bool:
        job = shell._cache.job(JobKey(self.namespace, name)) or {}
        return bool(job.get("status", {}).get("training", {}).get("step") == step)

    def knows_that_it_is_scheduled(self, shell: Shell, pod: str) -> bool:
        """Or that it can't be."""
        held = shell._cache.get(ObjectKey(POD.kind, self.namespace, pod)) or {}
        return any(condition["type"] == "PodScheduled" for condition in held.get("status", {}).get("conditions", []))

    async def create_child_of_no_job(self, shell: Shell) -> None:
        """Makes a child of no job, and waits until the shell knows it: earlier changes have arrived then, too."""
        metadata = {"namespace": self.namespace, "name": "nobodys", "labels": {LABEL_JOB: "nobody"}}
        spec = {"clusterIP": "None", "ports": [{"port": 1}]}
        await self.admin.create(SERVICE, {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec})
        key = ObjectKey(SERVICE.kind, self.namespace, "nobodys")
        await eventually_async(lambda: shell._cache.get(key) and is_idle(shell))

    def has_pods(self, *names: str) -> Callable[[], Awaitable[bool]]:
        async def check() -> bool:
            return set(await self.all(POD)) == set(names)

        return check

    def is_in(self, phase: str, *names: str) -> Callable[[], Awaitable[bool]]:
        async def check() -> bool:
            jobs = await self.all(RL_JOB)
            return all((jobs[name].get("status") or {}).get("phase") == phase for name in names)

        return check


@pytest.fixture
def bench(cluster: Cluster, admin: KubeClient, namespace: str) -> Bench:
    return Bench(cluster, admin, namespace)


def requests() -> dict[tuple[str, str, str], float]:
    """All requests so far but the lease's and the tests' own polling (`rljobs` are listed by tests)."""
    (metric,) = API_REQUESTS.collect()
    samples = ((sample.labels, sample.value) for sample in metric.samples)
    return {
        (labels["verb"], labels["resource"], labels["code"]): value
        for labels, value in samples
        if labels["resource"] != LEASE.plural
    }


def is_idle(shell: Shell) -> bool:
    """Returns whether nothing is due, and nothing will be unless something changes."""
    return shell._queue.oldest_seconds == 0 and shell._queue._schedule.next_timer() is None


async def probe(port: int, path: str) -> tuple[int, str]:
    async with ClientSession() as session, session.get(f"http://127.0.0.1:{port}{path}") as response:
        return response.status, await response.text()


async def test_jobs_are_made_true_then_cost_nothing_and_a_restart_touches_no_pod(bench: Bench) -> None:
    begun = requests()
    expected = {(job, f"the job is {phase}") for job in ("before", "after") for phase in ("Starting", "Running")}

    async def events_are_written() -> bool:
        """Events are written after the status that they report, and are counted once they are answered."""
        answered = {key: count - begun.get(key, 0) for key, count in requests().items() if key[1] == "events"}
        written = sum(count for (verb, *_), count in answered.items() if verb not in ("list", "watch"))
        events = (await bench.all(EVENT)).values()
        of_jobs = [event for event in events if event["involvedObject"]["kind"] == "RLJob"]
        shown = {(event["involvedObject"]["name"], event["message"]) for event in of_jobs}
        return shown == expected and written >= len(expected)

    await bench.submit("before")
    async with bench.running() as shell:
        await bench.submit("after", pods=3)
        await eventually_async(bench.is_in("Running", "before", "after"))
        pods = await bench.all(POD)
        assert set(pods) == {"before-0", "before-1", "after-0", "after-1", "after-2"}
        assert set(await bench.all(SERVICE)) == {"before", "after"}
        assert len(await bench.all(SECRET)) == 2
        await eventually_async(events_are_written)
        assert (await probe(bench.options.health_port, "/readyz")) == (200, "ok\n")
        _, metrics = await probe(bench.options.metrics_port, "/metrics")
        assert f'rljob_phase{{name="after",namespace="{bench.namespace}",phase="Running"}} 1.0' in metrics
        assert "longboat_leader 1.0" in metrics
        await eventually_async(lambda: is_idle(shell))
        settled = requests()
        pass_time(30)
        await bench.create_child_of_no_job(shell)
        # Neither a write nor a read for a job; in this time one or two kinds are listed for repair, however many jobs.
        since = {key: count - settled.get(key, 0) for key, count in requests().items()}
        asked = {key: count for key, count in since.items() if count and key[0] != "watch"}
        assert asked.pop(("create", "services", "201")) == 1, "the test's own"
        assert {verb for verb, *_ in asked} <= {"list"}
        assert sum(asked.values()) <= 2
    versions = {name: pod["metadata"]["resourceVersion"] for name, pod in (await bench.all(POD)).items()}
    before = requests()
    async with bench.running() as shell:
        await eventually_async(lambda: shell._freshness.settled and not shell._freshness.failing)
        await eventually_async(lambda: shell._leading and is_idle(shell))
    written = {key: count for key, count in requests().items() if key[0] not in ("get", "list", "watch")}
    assert written == {key: count for key, count in before.items() if key[0] not in ("get", "list", "watch")}
    assert {name: pod["metadata"]["resourceVersion"] for name, pod in (await bench.all(POD)).items()} == versions


@asynccontextmanager
async def without_bookmarks(
    client: KubeClient, *stream: Any, watch: Any = KubeClient.watch
) -> AsyncIterator[AsyncIterator[WatchEvent]]:
    async with watch(client, *stream) as events:
        yield (event async for event in events if event.type != "BOOKMARK")


async def test_progress_costs_no_plan_and_a_change_of_the_spec_does(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    await bench.submit("x", pods=1)
    planned: list[int] = []  # the step that each plan has seen

    def plan(observed: Observed, now: datetime) -> Plan:
        status = (observed.job or {}).get("status") or {}
        planned.append(status.get("training", {}).get("step", 0))
        return small_plan.plan(observed, now)

    # Everything that is waited for comes with an event of its own.
    monkeypatch.setattr(KubeClient, "watch", without_bookmarks)
    async with bench.running(plan) as shell:
        await eventually_async(bench.is_in("Running", "x"))
        await bench.report("x", step=1)
        await eventually_async(
            lambda: 1 in planned
        )  # the first report brings `state` and `incarnation`, so it is planned
        await eventually_async(
            partial(bench.knows_that_it_is_scheduled, shell, "x-0")
        )  # or can't be, which is reported last
        # Its plan isn't made at once: other changes may follow.
        await eventually_async(lambda: is_idle(shell))
        at_first = len(planned)
        for step in range(2, 7):
            await bench.report("x", step)
            await eventually_async(partial(bench.knows_step, shell, "x", step))
            assert is_idle(shell)
        assert len(planned) == at_first
        await bench.wants("x", 2)
        await eventually_async(bench.has_pods("x-0", "x-1"))
        await bench.wants("x", 0)
        await eventually_async(bench.has_pods())
        await eventually_async(lambda: shell._controller.expectations.waiting() == [])


async def test_a_crash_after_any_write_converges(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    write = KubeClient._write
    left = 0

    async def dies(self: KubeClient, request: Request) -> dict[str, Any]:
        nonlocal left
        if request.resource != LEASE.plural:
            if left == 0:
                raise LeadershipLostError("killed by the test")
            left -= 1
        return await write(self, request)

    names = []
    for cut in range(9):
        name = f"cut{cut}"
        names.append(name)
        await bench.submit(name)
        left = cut
        with monkeypatch.context() as patched:
            shell = await bench.shell()
            patched.setattr(KubeClient, "_write", dies)
            with pytest.raises(LeadershipLostError):
                await shell.run()
        async with bench.running():
            await eventually_async(bench.is_in("Running", *names))
        pods = await bench.all(POD)
        assert set(pods) == {f"{each}-{index}" for each in names for index in range(2)}
        # One that was made before the crash, and is named by nothing yet, can't be known again: it goes with its job.
        tokens = Counter(secret["metadata"]["labels"][LABEL_JOB] for secret in (await bench.all(SECRET)).values())
        assert set(tokens) == set(names)
        assert max(tokens.values()) <= 2


async def test_a_quota_is_told_and_its_end_is_noticed(bench: Bench) -> None:
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"namespace": bench.namespace, "name": "pods"}}
    await bench.admin.create(QUOTA, {**quota, "spec": {"hard": {"pods": "1"}}})
    await bench.submit("x", pods=3)
    async with bench.running():
        await eventually_async(bench.is_in("Failed", "x"))
        assert "exceeded quota" in (await bench.job("x"))["status"]["reason"]
        assert len(await bench.all(POD)) == 1
        await bench.admin.patch(QUOTA, bench.namespace, "pods", {"spec": {"hard": {"pods": "9"}}}, MERGE_PATCH)
        await eventually_async(bench.is_in("Running", "x"))


async def test_a_strangers_object_is_left_alone(bench: Bench) -> None:
    metadata = {"namespace": bench.namespace, "name": "x"}
    spec = {"clusterIP": "None", "selector": {"app": "theirs"}, "ports": [{"port": 80}]}
    body = {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec}
    query = {"fieldManager": "somebody"}
    path = SERVICE.path(bench.namespace)
    theirs = await bench.admin._transport.send(Request("POST", path, "create", "services", query, body))
    await bench.submit("x")
    async with bench.running():
        await eventually_async(bench.is_in("Failed", "x"))
        assert "Service x" in (await bench.job("x"))["status"]["reason"]
        assert not await bench.all(POD)
        assert (await bench.admin.get(SERVICE, bench.namespace, "x"))["spec"]["selector"] == {"app": "theirs"}
        await bench.admin.delete(SERVICE, bench.namespace, "x", theirs["metadata"]["uid"])
        await eventually_async(bench.is_in("Running", "x"))
        assert (await bench.admin.get(SERVICE, bench.namespace, "x"))["spec"]["selector"] == {LABEL_JOB: "x"}


async def test_a_job_made_anew_gets_children_of_its_own(bench: Bench) -> None:
    await bench.submit("x")
    async with bench.running():
        await eventually_async(bench.is_in("Running", "x"))
        await bench.delete("x")
        new = await bench.submit("x")
        await eventually_async(bench.is_in("Running", "x"))

        async def only_ours() -> bool:
            objects = [*(await bench.all(POD)).values(), *(await bench.all(SERVICE)).values()]
            owners = {obj["metadata"]["ownerReferences"][0]["uid"] for obj in objects}
            return owners == {new["metadata"]["uid"]} and len(objects) == 3

        await eventually_async(only_ours)
        _, metrics = await probe(bench.options.metrics_port, "/metrics")
        assert 'name="x"' in metrics
        await bench.delete("x")

        async def forgotten() -> bool:
            return 'name="x"' not in (await probe(bench.options.metrics_port, "/metrics"))[1]

        await eventually_async(forgotten)


async def test_a_deletion_that_kopf_missed_is_repaired(bench: Bench) -> None:
    await bench.submit("x", pods=0)
    async with bench.running() as shell:
        await eventually_async(bench.is_in("Running", "x"))
        held = shell._cache.job(JobKey(bench.namespace, "x"))
        assert held is not None
        phantom = {**held, "metadata": {**held["metadata"], "name": "phantom", "uid": "none"}}
        shell._cache.put(phantom)
        await shell._repair.once(RL_JOB, bench.namespace, "")
        assert shell._cache.job(JobKey(bench.namespace, "phantom")) is None
        assert shell._cache.job(JobKey(bench.namespace, "x")) is not None
        # And an object that kopf owes and never tells of makes the process unready, then dead.
        ghost = ObjectKey("RLJob", bench.namespace, "ghost")
        shell._freshness.note_newer(ghost, 1, now=-1e9)
        status, reasons = await probe(bench.options.health_port, "/readyz")
        assert status == 503
        assert "RLJob watch is dead" in reasons
        assert (await probe(bench.options.health_port, "/healthz"))[0] == 503


async def test_nothing_is_left_in_the_cluster_of_what_kopf_could_write(bench: Bench) -> None:
    await bench.submit("x")
    async with bench.running():
        await eventually_async(bench.is_in("Running", "x"))
    job = await bench.job("x")
    assert not job["metadata"].get("finalizers")
    assert set(job["metadata"]["annotations"]) == {small_plan.PODS}
    managers = {entry["manager"] for entry in job["metadata"]["managedFields"]}
    assert managers == {"longboat-operator"}


async def test_the_lease_is_given_up_at_the_end(bench: Bench) -> None:
    async with bench.running() as shell:
        await eventually_async(lambda: shell._leading)
        lease = await bench.admin.get(LEASE, bench.namespace, "operator")
        assert lease["spec"]["holderIdentity"] == shell._identity
    lease = await bench.admin.get(LEASE, bench.namespace, "operator")
    assert lease["spec"]["holderIdentity"] == ""


async def test_it_ends_also_while_it_waits_for_its_crds(
    bench: Bench, gateway: tuple[Gateway, Configuration], capsys: pytest.CaptureFixture[str]
) -> None:
    way, configuration = gateway
    way.refuse(lambda request: 404 if "/longboat.dev/" in request.path else None)
    async with running(open_shell(configuration, bench.options, small_plan.observe, small_plan.plan)) as shell:
        kinds = [Source(kind, bench.namespace) for kind in ("RLJob", "RLRuntime")]
        await eventually_async(lambda: shell._leading and [*shell._freshness.failing] == kinds)
        status, reasons = await probe(bench.options.health_port, "/readyz")
        assert (status, reasons.splitlines()[0]) == (503, "no namespace is served")
    assert "tasks don't end" not in capsys.readouterr().out
