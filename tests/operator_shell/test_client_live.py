"""The client's verbs and the server's answers, on a real API server."""

from __future__ import annotations

from typing import Any

import pytest

from longboat_operator.kube import client as client_module
from longboat_operator.kube import errors
from longboat_operator.kube.client import STRATEGIC_MERGE_PATCH, KubeClient
from longboat_operator.kube.clock import ServerClock
from longboat_operator.kube.events import EventRecorder
from longboat_operator.kube.resources import (
    EVENT,
    NETWORK_POLICY,
    POD,
    RL_JOB,
    ROLE,
    ROLE_BINDING,
    SERVICE,
    SERVICE_ACCOUNT,
    Resource,
)
from longboat_operator.kube.transport import Request, Transport
from longboat_operator.model import EmitEvent
from tests.operator_shell import small_plan
from tests.support.texts import UNUSUAL

pytestmark = pytest.mark.cluster


def service(namespace: str, name: str = "x", **spec: Any) -> dict[str, Any]:
    metadata = {"namespace": namespace, "name": name}
    spec = {"clusterIP": "None", "ports": [{"port": 1}], **spec}
    return {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec}


def status_of(job: dict[str, Any], version: str, **status: Any) -> dict[str, Any]:
    metadata = {key: job["metadata"][key] for key in ("namespace", "name")}
    body = {"apiVersion": job["apiVersion"], "kind": job["kind"], "metadata": {**metadata, "resourceVersion": version}}
    return {**body, "status": status}


async def test_create_get_delete(admin: KubeClient, namespace: str) -> None:
    created = await admin.create(SERVICE, service(namespace))
    with pytest.raises(errors.AlreadyExistsError):
        await admin.create(SERVICE, service(namespace))
    assert await admin.get(SERVICE, namespace, "x") == created
    with pytest.raises(errors.ConflictError):
        await admin.delete(SERVICE, namespace, "x", uid="00000000-0000-0000-0000-000000000000")
    await admin.delete(SERVICE, namespace, "x", created["metadata"]["uid"])
    with pytest.raises(errors.NotFoundError):
        await admin.get(SERVICE, namespace, "x")


async def test_a_dry_run_is_judged_like_a_create_and_leaves_nothing(admin: KubeClient, namespace: str) -> None:
    await admin.create(SERVICE, service(namespace), dry_run=True)
    with pytest.raises(errors.NotFoundError):
        await admin.get(SERVICE, namespace, "x")
    with pytest.raises(errors.InvalidError) as caught:
        await admin.create(SERVICE, service(namespace, ports=[{"port": 0}]), dry_run=True)
    assert "spec.ports[0].port" in [cause.field for cause in caught.value.causes]


async def test_an_apply_unforced_leaves_anothers_field_and_forced_takes_it(
    admin: KubeClient, transport: Transport, namespace: str
) -> None:
    theirs = service(namespace, selector={"app": "theirs"})
    query = {"fieldManager": "somebody"}
    await transport.send(Request("POST", SERVICE.path(namespace), "create", "services", query, theirs))
    ours = service(namespace, selector={"app": "ours"})
    with pytest.raises(errors.ConflictError, match="somebody"):
        await admin.apply(SERVICE, ours, force=False)
    assert (await admin.get(SERVICE, namespace, "x"))["spec"]["selector"] == {"app": "theirs"}
    applied = await admin.apply(SERVICE, ours)
    assert applied["spec"]["selector"] == {"app": "ours"}
    again = await admin.apply(SERVICE, ours)
    assert again["metadata"]["resourceVersion"] == applied["metadata"]["resourceVersion"]


async def test_any_text_is_applied(admin: KubeClient, namespace: str) -> None:
    body = service(namespace)
    body["metadata"]["annotations"] = {"text": UNUSUAL}
    assert (await admin.apply(SERVICE, body))["metadata"]["annotations"]["text"] == UNUSUAL


@pytest.mark.parametrize("resource", [SERVICE, SERVICE_ACCOUNT, ROLE, ROLE_BINDING, NETWORK_POLICY])
async def test_an_apply_that_is_to_make_an_object_changes_none_that_is_there(
    admin: KubeClient, namespace: str, resource: Resource
) -> None:
    """Not even one with which it shares no field, which a server-side apply would take over without a conflict."""
    contents: dict[str, Any] = {
        "Service": {"spec": {"clusterIP": "None"}},
        "RoleBinding": {"roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "x"}},
        "NetworkPolicy": {"spec": {"podSelector": {}}},
    }
    metadata = {"namespace": namespace, "name": "x"}
    plain = {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": metadata}
    body = {**plain, **contents.get(resource.kind, {})}
    theirs = await admin.create(resource, body)
    ours = {**body, "metadata": {**metadata, "labels": {"app": "ours"}}}
    with pytest.raises(errors.ConflictError):
        await admin.apply_new(resource, ours)
    assert await admin.get(resource, namespace, "x") == theirs
    await admin.delete(resource, namespace, "x", theirs["metadata"]["uid"])
    made = await admin.apply_new(resource, ours)
    assert made["metadata"]["labels"] == {"app": "ours"}
    with pytest.raises(errors.InvalidError, match=r"metadata\.uid"):
        await admin.apply(resource, {**ours, "metadata": {**ours["metadata"], "uid": theirs["metadata"]["uid"]}})
    again = await admin.apply(resource, {**ours, "metadata": {**metadata, "uid": made["metadata"]["uid"]}})
    assert "labels" not in again["metadata"]


async def test_a_status_is_rejected_if_the_job_has_changed(admin: KubeClient, namespace: str) -> None:
    job = await admin.create(RL_JOB, small_plan.manifest(namespace, "x"))
    version = job["metadata"]["resourceVersion"]
    written = await admin.apply(RL_JOB, status_of(job, version, phase="Starting"), subresource="status")
    assert written["status"]["phase"] == "Starting"
    with pytest.raises(errors.ConflictError):
        await admin.apply(RL_JOB, status_of(job, version, phase="Running"), subresource="status")


async def test_a_bad_job_names_its_field(admin: KubeClient, namespace: str) -> None:
    manifest = small_plan.manifest(namespace, "x")
    manifest["spec"]["rounds"]["steps"] = 0
    with pytest.raises(errors.InvalidError) as caught:
        await admin.create(RL_JOB, manifest)
    assert "spec.rounds.steps" in [cause.field for cause in caught.value.causes]


async def test_a_resize_changes_one_containers_cpu(admin: KubeClient, namespace: str) -> None:
    job = await admin.create(RL_JOB, small_plan.manifest(namespace, "x"))
    body = small_plan.pod(job, "x-0")
    body["spec"]["containers"][0]["resources"] = {"limits": {"cpu": "1"}, "requests": {"cpu": "100m"}}
    await admin.create(POD, body)
    patch = {"spec": {"containers": [{"name": "main", "resources": {"limits": {"cpu": "2"}}}]}}
    await admin.patch(POD, namespace, "x-0", patch, STRATEGIC_MERGE_PATCH, subresource="resize")
    (container,) = (await admin.get(POD, namespace, "x-0"))["spec"]["containers"]
    assert container["resources"] == {"limits": {"cpu": "2"}, "requests": {"cpu": "100m"}}
    assert container["image"] == "localhost/none:1"


async def test_lists_come_in_pages_of_one_version_and_as_metadata(
    admin: KubeClient, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "PAGE_SIZE", 2)
    for number in range(5):
        account = {
            "apiVersion": "v1",
            "kind": "ServiceAccount",
            "metadata": {"namespace": namespace, "name": f"a{number}"},
        }
        account["metadata"]["labels"] = {"test": "pages"}  # type: ignore[index]
        await admin.create(SERVICE_ACCOUNT, account)
    whole = [page async for page in admin.list_pages(SERVICE_ACCOUNT, namespace, "test=pages")]
    assert [len(page.items) for page in whole] == [2, 2, 1]
    assert len({page.resource_version for page in whole}) == 1
    await admin.create(SERVICE, service(namespace))
    (page,) = [page async for page in admin.list_pages(SERVICE, namespace, metadata_only=True)]
    (item,) = page.items
    assert item["metadata"]["name"] == "x"
    assert "spec" not in item


async def test_the_same_event_counts_up_also_for_the_next_process(admin: KubeClient, namespace: str) -> None:
    job = await admin.create(RL_JOB, small_plan.manifest(namespace, "x"))
    told = EmitEvent("Warning", "RolloutLost", "pod x-rollout-0 is gone")
    first, second = EventRecorder(admin, ServerClock(), "first"), EventRecorder(admin, ServerClock(), "second")
    for recorder in (first, first, second, second):
        await recorder.record(job, told)
    await second.record(job, EmitEvent("Normal", "Started", "all roles are ready"))
    events = [event async for page in admin.list_pages(EVENT, namespace) for event in page.items]
    assert {event["reason"] for event in events} == {"RolloutLost", "Started"}
    (lost,) = [event for event in events if event["reason"] == "RolloutLost"]
    assert lost["count"] == 4
    assert lost["involvedObject"]["uid"] == job["metadata"]["uid"]
