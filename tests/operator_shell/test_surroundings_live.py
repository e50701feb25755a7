"""What a job needs around its pods, by the real plan on a real API server: made, kept, and never taken from others."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import wraps
from typing import Any

import pytest

from e2e.cluster import Cluster
from longboat_operator.kube.client import MERGE_PATCH, KubeClient
from longboat_operator.kube.config import load_configuration
from longboat_operator.kube.errors import NotFoundError
from longboat_operator.kube.resources import (
    CLAIM,
    CONTROLLER_REVISION,
    NETWORK_POLICY,
    POD,
    RL_JOB,
    RL_RUNTIME,
    ROLE,
    ROLE_BINDING,
    SECRET,
    SERVICE,
    SERVICE_ACCOUNT,
    Resource,
)
from longboat_operator.metrics import ACTIONS
from longboat_operator.model import ANNOTATION_RAY_TOKEN, LABEL_INDEX, LABEL_JOB
from longboat_operator.observe import observe
from longboat_operator.planner import plan
from longboat_operator.reading.intact import stored_records
from longboat_operator.shell import Options, Shell
from tests.operator_shell.conftest import create_runtime, open_shell, running
from tests.operator_shell.small_plan import manifest
from tests.operator_shell.test_shell_live import requests
from tests.support.ports import free_port
from tests.support.waiting import eventually_async

pytestmark = pytest.mark.cluster

VOLUME = Resource("PersistentVolume", "persistentvolumes", namespaced=False)
STORAGE_CLASS = Resource("StorageClass", "storageclasses", "storage.k8s.io", namespaced=False)
AROUND = (SERVICE_ACCOUNT, ROLE, ROLE_BINDING, SERVICE, NETWORK_POLICY, CLAIM)


class Bench:
    """A namespace with a runtime template whose pods no node takes, so nothing but the API server has a part."""

    def __init__(self, cluster: Cluster, admin: KubeClient, namespace: str) -> None:
        self.cluster = cluster
        self.admin = admin
        self.namespace = namespace

    @asynccontextmanager
    async def operator(self) -> AsyncIterator[Shell]:
        """The real operator, serving the namespace."""
        options = Options((self.namespace,), None, free_port(), free_port())
        configuration = await load_configuration(self.cluster.kubeconfig)
        async with running(open_shell(configuration, options, observe, plan)) as shell:
            yield shell

    async def submit(self, name: str, **checkpoint: Any) -> None:
        body = manifest(self.namespace, name)
        body["spec"] |= {"runtimeRef": {"kind": "RLRuntime", "name": "nowhere"}, "checkpoint": checkpoint}
        await self.admin.create(RL_JOB, body)

    async def edit(self, name: str, **spec: Any) -> None:
        await self.admin.patch(RL_JOB, self.namespace, name, {"spec": spec}, MERGE_PATCH)

    async def delete(self, resource: Resource, name: str) -> None:
        found = await self.get(resource, name)
        await self.admin.delete(resource, self.namespace, name, found["metadata"]["uid"])

    async def get(self, resource: Resource, name: str) -> dict[str, Any]:
        return await self.admin.get(resource, self.namespace, name)

    async def all(self, resource: Resource) -> dict[str, dict[str, Any]]:
        pages = self.admin.list_pages(resource, self.namespace)
        return {item["metadata"]["name"]: item async for page in pages for item in page.items}

    async def put(self, resource: Resource, name: str, **content: Any) -> dict[str, Any]:
        metadata = {"namespace": self.namespace, "name": name}
        body = {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": metadata, **content}
        return await self.admin.create(resource, body)

    async def condition(self, name: str, kind: str) -> dict[str, Any]:
        conditions = (await self.get(RL_JOB, name)).get("status", {}).get("conditions") or []
        return next((condition for condition in conditions if condition["type"] == kind), {})

    def says(self, name: str, reason: str) -> Callable[[], Awaitable[bool]]:
        async def check() -> bool:
            return (await self.condition(name, "Scheduled")).get("reason") == reason

        return check

    def has_pods(self, name: str, count: int) -> Callable[[], Awaitable[bool]]:
        async def check() -> bool:
            pods = (await self.all(POD)).values()
            return sum(pod["metadata"]["labels"].get(LABEL_JOB) == name for pod in pods) == count

        return check

    def is_gone(self, resource: Resource, name: str) -> Callable[[], Awaitable[bool]]:
        async def check() -> bool:
            try:
                await self.get(resource, name)
            except NotFoundError:
                return True
            return False

        return check


@pytest.fixture
async def bench(cluster: Cluster, admin: KubeClient, namespace: str) -> Bench:
    await create_runtime(admin, namespace)
    return Bench(cluster, admin, namespace)


def served(test: Callable[..., Awaitable[None]]) -> Callable[..., Awaitable[None]]:
    """Runs a test beside the operator."""

    @wraps(test)
    async def beside(bench: Bench, **arguments: Any) -> None:
        async with bench.operator():
            await test(bench, **arguments)

    return beside


def applied() -> dict[str, float]:
    """Applies that the server has taken so far in this process, by kind."""
    (metric,) = ACTIONS.collect()
    counts: Counter[str] = Counter()
    for sample in metric.samples:
        if not sample.name.endswith("_total") or sample.labels["action"] != "ApplyObject":
            continue
        if sample.labels["outcome"] not in {"rejected", "skipped", "unanswered", "waiting"}:
            counts[sample.labels["kind"]] += sample.value
    return counts


@served
async def test_what_stands_is_not_touched_again_whatever_the_server_filled_in(bench: Bench) -> None:
    await bench.submit("x")
    await eventually_async(bench.has_pods("x", 4))
    await eventually_async(bench.says("x", "VolumeNotReady"))  # nobody makes a volume for the claim
    before, writes = applied(), requests()
    await bench.edit("x", ttlSecondsAfterFinished=1000)  # it is planned again

    def written() -> set[tuple[str, str, str]]:
        """Tests list, get and patch, kopf watches, and what the status before said is told in an Event after it."""
        since = {key for key, count in requests().items() if count > writes.get(key, 0)}
        ours = {key for key in since if key[0] not in ("list", "watch") and key[1] != "events"}
        return ours - {("patch", "rljobs", "200"), ("get", "rljobs", "200")}

    async def seen() -> bool:
        job = await bench.get(RL_JOB, "x")
        # A write is counted once it was answered.
        return bool(job["status"]["observedGeneration"] == job["metadata"]["generation"] and written())

    await eventually_async(seen)
    assert applied() == before
    assert written() == {("apply", "rljobs/status", "200")}


@pytest.mark.parametrize("resource", AROUND, ids=lambda resource: resource.kind)
@served
async def test_a_strangers_object_stays_as_it_is_also_when_the_job_is_deleted(bench: Bench, resource: Resource) -> None:
    names = {SERVICE: "x-head", NETWORK_POLICY: "x-job", CLAIM: "x-checkpoint"}
    contents: dict[Resource, dict[str, Any]] = {
        ROLE_BINDING: {"roleRef": {"apiGroup": ROLE.group, "kind": "Role", "name": "theirs"}},
        SERVICE: {"spec": {"ports": [{"port": 80}]}},
        NETWORK_POLICY: {"spec": {"podSelector": {"matchLabels": {"app": "theirs"}}}},
        CLAIM: {"spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}},
    }
    name = names.get(resource, "x-driver")
    theirs = await bench.put(resource, name, **contents.get(resource, {}))
    await bench.submit("x")
    await eventually_async(bench.says("x", "NameTaken"))
    message = (await bench.condition("x", "Scheduled"))["message"]
    assert f"{resource.kind} {name} exists and is not this job's" in message
    assert "metadata.name" in message
    for other in (POD, SECRET, CONTROLLER_REVISION):
        assert not [
            n for n, found in (await bench.all(other)).items() if LABEL_JOB in found["metadata"].get("labels", {})
        ]
    await bench.delete(RL_JOB, "x")
    await eventually_async(bench.is_gone(RL_JOB, "x"))
    left = await bench.get(resource, name)
    assert unmanaged(left) == unmanaged(theirs)


@served
async def test_a_name_that_becomes_free_is_used(bench: Bench) -> None:
    await bench.put(SERVICE_ACCOUNT, "x-driver")
    await bench.submit("x")
    await eventually_async(bench.says("x", "NameTaken"))
    await bench.delete(SERVICE_ACCOUNT, "x-driver")
    await eventually_async(bench.has_pods("x", 4))
    assert (await bench.get(SERVICE_ACCOUNT, "x-driver"))["metadata"]["ownerReferences"]


@served
async def test_what_is_edited_by_hand_is_restored_once(bench: Bench) -> None:
    await bench.submit("x")
    await eventually_async(bench.has_pods("x", 4))
    ours = {
        (resource, name): found
        for resource in (ROLE, SERVICE, NETWORK_POLICY)
        for name, found in (await bench.all(resource)).items()
        if LABEL_JOB in found["metadata"].get("labels", {})
    }
    assert len(ours) == 4
    before = applied()
    wide_open: dict[Resource, dict[str, Any]] = {
        ROLE: {"rules": []},
        SERVICE: {"spec": {"selector": {"app": "theirs"}}},
        NETWORK_POLICY: {"spec": {"podSelector": {"matchLabels": {"app": "none"}}, "policyTypes": ["Ingress"]}},
    }
    for resource, name in ours:
        await bench.admin.patch(resource, bench.namespace, name, wide_open[resource], MERGE_PATCH)

    def since() -> dict[str, float]:
        counts = {kind: count - before.get(kind, 0) for kind, count in applied().items()}
        return {kind: count for kind, count in counts.items() if count}

    async def restored() -> bool:
        live = {(resource, name): await bench.get(resource, name) for resource, name in ours}
        same = all(live[key].get(part) == ours[key].get(part) for key in ours for part in ("spec", "rules"))
        return same and sum(since().values()) >= len(ours)  # an apply is counted once it was answered

    await eventually_async(restored)
    assert since() == {"Role": 1, "Service": 1, "NetworkPolicy": 2}


@served
async def test_what_loses_its_labels_gets_them_back(bench: Bench) -> None:
    await bench.submit("x")
    await eventually_async(bench.has_pods("x", 4))
    for resource, name in ((SERVICE_ACCOUNT, "x-driver"), (CLAIM, "x-checkpoint")):
        before = await bench.get(resource, name)
        await bench.admin.patch(resource, bench.namespace, name, {"metadata": {"labels": None}}, MERGE_PATCH)

        async def labelled(resource: Resource = resource, name: str = name, before: Any = before) -> bool:
            return bool((await bench.get(resource, name))["metadata"].get("labels") == before["metadata"]["labels"])

        await eventually_async(labelled)
        assert (await bench.get(resource, name))["metadata"]["uid"] == before["metadata"]["uid"]
    assert (await bench.condition("x", "Scheduled"))["reason"] != "NameTaken"


@served
async def test_a_claim_is_enlarged_by_hand_and_retained_after_all(bench: Bench) -> None:
    """reclaimPolicy Delete, then Retain; the job is deleted, the claim stays, as large as it was made."""
    name = bench.namespace
    meta = {"metadata": {"name": name}}
    grows = {"provisioner": "kubernetes.io/no-provisioner", "allowVolumeExpansion": True}
    await bench.admin.create(
        STORAGE_CLASS, {"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", **meta, **grows}
    )
    spec = {
        "capacity": {"storage": "10Gi"},
        "accessModes": ["ReadWriteMany"],
        "storageClassName": name,
        "claimRef": {"namespace": name, "name": "x-checkpoint"},
        "hostPath": {"path": "/nowhere"},
    }
    volume = await bench.admin.create(VOLUME, {"apiVersion": "v1", "kind": "PersistentVolume", **meta, "spec": spec})
    try:
        await bench.submit("x", reclaimPolicy="Delete", volume={"storageClassName": name})
        await eventually_async(bench.has_pods("x", 4))

        async def bound() -> bool:
            return bool((await bench.get(CLAIM, "x-checkpoint")).get("status", {}).get("phase") == "Bound")

        await eventually_async(bound)
        claim = await bench.get(CLAIM, "x-checkpoint")
        assert [owner["name"] for owner in claim["metadata"]["ownerReferences"]] == ["x"]
        size = {"spec": {"resources": {"requests": {"storage": "20Gi"}}}}
        await bench.admin.patch(CLAIM, name, "x-checkpoint", size, MERGE_PATCH)
        await bench.edit("x", checkpoint={"reclaimPolicy": "Retain"})

        async def free() -> bool:
            return "ownerReferences" not in (await bench.get(CLAIM, "x-checkpoint"))["metadata"]

        await eventually_async(free)
        # It waits for its pods as before.
        waiting = {"VolumeNotReady", "PodsStarting", "PodUnschedulable"}
        assert (await bench.condition("x", "Scheduled"))["reason"] in waiting
        await bench.delete(RL_JOB, "x")
        await eventually_async(bench.is_gone(SERVICE_ACCOUNT, "x-driver"))
        left = await bench.get(CLAIM, "x-checkpoint")
        assert "deletionTimestamp" not in left["metadata"]
        assert left["spec"]["resources"]["requests"]["storage"] == "20Gi"
    finally:
        await bench.admin.delete(VOLUME, None, name, volume["metadata"]["uid"])
        made = await bench.admin.get(STORAGE_CLASS, None, name)
        await bench.admin.delete(STORAGE_CLASS, None, name, made["metadata"]["uid"])


@served
async def test_a_job_made_anew_waits_for_what_the_garbage_collector_still_has_to_remove(bench: Bench) -> None:
    await bench.submit("x", reclaimPolicy="Delete")
    await eventually_async(bench.has_pods("x", 4))
    await bench.delete(RL_JOB, "x")
    await bench.submit("x", reclaimPolicy="Delete")
    uid = (await bench.get(RL_JOB, "x"))["metadata"]["uid"]

    async def all_new() -> bool:
        pods = (await bench.all(POD)).values()
        return len(pods) == 4 and all(pod["metadata"]["ownerReferences"][0]["uid"] == uid for pod in pods)

    await eventually_async(all_new)
    assert (await bench.get(SERVICE_ACCOUNT, "x-driver"))["metadata"]["ownerReferences"][0]["uid"] == uid


@served
async def test_a_deleted_token_is_replaced_when_a_pod_needs_it(bench: Bench) -> None:
    await bench.submit("x")
    await eventually_async(bench.has_pods("x", 4))
    token = (await bench.get(RL_JOB, "x"))["status"]["rayTokenSecret"]
    assert set(await bench.all(SECRET)) == {token}
    await bench.delete(SECRET, token)
    await bench.edit("x", rollout={"replicas": 2})

    async def replaced() -> bool:
        status, pods = (await bench.get(RL_JOB, "x"))["status"], (await bench.all(POD)).values()
        used = {pod["metadata"]["annotations"][ANNOTATION_RAY_TOKEN] for pod in pods}
        return len(pods) == 5 and used == {status["rayTokenSecret"]} == set(await bench.all(SECRET)) != {token}

    await eventually_async(replaced)


@served
async def test_the_access_mode_of_a_claim_that_was_brought_is_read(bench: Bench) -> None:
    await bench.submit("x", claimName="theirs")
    await eventually_async(bench.says("x", "VolumeNotReady"))
    message = (await bench.condition("x", "Scheduled"))["message"]
    assert message.startswith("spec.checkpoint.claimName: PersistentVolumeClaim theirs doesn't exist")
    spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    theirs = await bench.put(CLAIM, "theirs", spec=spec)
    await eventually_async(bench.has_pods("x", 4))
    together = {
        pod["metadata"]["labels"]["longboat.dev/role"]
        for pod in (await bench.all(POD)).values()
        if pod["spec"].get("affinity", {}).get("podAffinity")
    }
    assert together == {"driver", "trainer"}
    assert unmanaged(await bench.get(CLAIM, "theirs")) == unmanaged(theirs)


def unmanaged(obj: dict[str, Any]) -> dict[str, Any]:
    """Without what the API server and its controllers keep for themselves."""
    noise = ("managedFields", "resourceVersion", "finalizers")
    metadata = {key: value for key, value in obj["metadata"].items() if key not in noise}
    return {**{key: value for key, value in obj.items() if key != "status"}, "metadata": metadata}


async def with_recorded_pods(bench: Bench) -> None:
    """Submits a job; returns once its status has records of its pods, by which those are found without their labels."""
    await bench.submit("x")

    async def recorded() -> bool:
        roles = (await bench.get(RL_JOB, "x")).get("status", {}).get("roles", {})
        return sum(1 for role in roles.values() for _ in stored_records(role)) == 4

    await eventually_async(recorded)


def without_label(name: str) -> dict[str, Any]:
    return {"metadata": {"labels": {name: None}}}


@pytest.mark.parametrize("label", [LABEL_JOB, LABEL_INDEX])
@served
async def test_a_pod_whose_label_is_removed_is_replaced(bench: Bench, label: str) -> None:
    await with_recorded_pods(bench)
    uid = (await bench.get(POD, "x-trainer-0-a0"))["metadata"]["uid"]
    await bench.admin.patch(POD, bench.namespace, "x-trainer-0-a0", without_label(label), MERGE_PATCH)

    async def replaced() -> bool:
        pods = await bench.all(POD)
        return "x-trainer-0-a1" in pods and uid not in {pod["metadata"]["uid"] for pod in pods.values()}

    await eventually_async(replaced)
    await eventually_async(bench.has_pods("x", 4))


@served
async def test_a_pod_without_the_job_label_goes_when_the_job_is_suspended(bench: Bench) -> None:
    await with_recorded_pods(bench)
    await bench.admin.patch(POD, bench.namespace, "x-trainer-0-a0", without_label(LABEL_JOB), MERGE_PATCH)
    await bench.edit("x", suspend=True)

    async def gone() -> bool:
        return not await bench.all(POD)

    await eventually_async(gone)


@served
async def test_a_revision_can_be_labelled_and_replaced_whatever_the_template_has(bench: Bench) -> None:
    """The API server keeps its data as it was sent, and refuses changes of anything else if Go would write it otherwise."""
    environment = [{"name": "B", "value": "a && b < c > d"}, {"name": "A", "value": "\u00e4\U0001f680\u2028"}]
    container = {"name": "trainer", "env": environment, "resources": {"limits": {"memory": "1Gi", "cpu": 0.5}}}
    template = {"spec": {"nodeSelector": {"test.longboat.dev/none": "none"}, "containers": [container]}}
    spec = {"image": "localhost/none:1", "roles": {"trainer": {"template": template}}}
    await bench.put(RL_RUNTIME, "odd", spec=spec)
    body = manifest(bench.namespace, "x")
    body["spec"] |= {"runtimeRef": {"kind": "RLRuntime", "name": "odd"}}
    await bench.admin.create(RL_JOB, body)
    await eventually_async(bench.has_pods("x", 4))
    labels = {"metadata": {"labels": {"team": "search"}}}
    await bench.admin.patch(CONTROLLER_REVISION, bench.namespace, "x-runtime-1", labels, MERGE_PATCH)
    revision = await bench.get(CONTROLLER_REVISION, "x-runtime-1")
    await bench.admin.replace(CONTROLLER_REVISION, {**revision, "apiVersion": "apps/v1", "kind": "ControllerRevision"})
    await bench.admin.patch(
        CONTROLLER_REVISION, bench.namespace, "x-runtime-1", {"metadata": {"ownerReferences": None}}, MERGE_PATCH
    )
