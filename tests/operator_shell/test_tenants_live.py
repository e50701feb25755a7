"""Labels, accounts and claims of tenants, by the real plan on a real API server."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest

from e2e.cluster import Cluster
from longboat_operator.kube.client import MERGE_PATCH, KubeClient
from longboat_operator.kube.config import load_configuration
from longboat_operator.kube.errors import ApiError
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
from longboat_operator.model import LABEL_JOB, LABEL_JOB_UID
from longboat_operator.observe import observe
from longboat_operator.planner import plan
from longboat_operator.shell import Options, Shell
from tests.operator_shell.conftest import create_runtime, open_shell, running
from tests.operator_shell.small_plan import manifest
from tests.operator_shell.test_surroundings_live import Bench
from tests.support.ports import free_port
from tests.support.waiting import eventually_async

pytestmark = pytest.mark.cluster

POLICY = Resource(
    "ValidatingAdmissionPolicy", "validatingadmissionpolicies", "admissionregistration.k8s.io", namespaced=False
)
BINDING = Resource(
    "ValidatingAdmissionPolicyBinding",
    "validatingadmissionpolicybindings",
    "admissionregistration.k8s.io",
    namespaced=False,
)
CHILDREN = (POD, SERVICE, SERVICE_ACCOUNT, ROLE, ROLE_BINDING, NETWORK_POLICY, CLAIM, CONTROLLER_REVISION, SECRET)
GROUPS = sorted({resource.group for resource in CHILDREN})


class Site(Bench):
    """A bench whose operator may delete, as where the policies are installed."""

    @asynccontextmanager
    async def operator(self) -> AsyncIterator[Shell]:
        options = Options((self.namespace,), None, free_port(), free_port(), may_delete=True)
        configuration = await load_configuration(self.cluster.kubeconfig)
        async with running(open_shell(configuration, options, partial(observe, may_delete=True), plan)) as shell:
            yield shell

    async def children(self) -> list[dict[str, Any]]:
        found = [list((await self.all(resource)).values()) for resource in CHILDREN]
        return [child for group in found for child in group if LABEL_JOB in child["metadata"].get("labels", {})]

    async def submit_with(self, name: str, **spec: Any) -> None:
        body = manifest(self.namespace, name)
        body["spec"] |= {"runtimeRef": {"kind": "RLRuntime", "name": "nowhere"}, **spec}
        await self.admin.create(RL_JOB, body)

    async def runtime(self, **spec: Any) -> None:
        found = await self.get(RL_RUNTIME, "nowhere")
        await self.admin.patch(RL_RUNTIME, self.namespace, "nowhere", {"spec": spec}, MERGE_PATCH)
        assert found


@pytest.fixture
async def site(cluster: Cluster, admin: KubeClient, namespace: str) -> Site:
    await create_runtime(admin, namespace)
    made = Site(cluster, admin, namespace)

    async def has_account() -> bool:
        return "default" in await made.all(SERVICE_ACCOUNT)

    await eventually_async(has_account)
    return made


@asynccontextmanager
async def labels_required(site: Site) -> AsyncIterator[None]:
    """A policy of the platform in force: everything that is created in the namespace has a label cost-center."""
    rules = [
        {
            "apiGroups": [group],
            "apiVersions": ["v1"],
            "operations": ["CREATE"],
            "resources": [resource.plural for resource in CHILDREN if resource.group == group],
        }
        for group in GROUPS
    ]
    name = f"cost-center-{site.namespace}"
    space = {"matchLabels": {"kubernetes.io/metadata.name": site.namespace}}
    wanted = "has(object.metadata.labels) && 'cost-center' in object.metadata.labels"
    spec = {
        "matchConstraints": {"resourceRules": rules, "namespaceSelector": space},
        "validations": [{"expression": wanted, "message": "label cost-center is required"}],
    }
    bound = {"policyName": name, "validationActions": ["Deny"]}
    made = [
        await site.admin.create(
            resource,
            {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": {"name": name}, "spec": body},
        )
        for resource, body in ((POLICY, spec), (BINDING, bound))
    ]

    async def in_force() -> bool:
        body = {"apiVersion": "v1", "kind": "Secret", "metadata": {"namespace": site.namespace, "name": "probe"}}
        try:
            await site.admin.create(SECRET, body, dry_run=True)
        except ApiError as error:
            return "cost-center" in str(error)
        return False

    await eventually_async(in_force)
    yield
    for resource, body in zip((BINDING, POLICY), reversed(made), strict=True):
        await site.admin.delete(resource, None, name, body["metadata"]["uid"])


async def test_a_job_with_the_labels_that_a_platform_demands_gets_everything(site: Site) -> None:
    async with site.operator(), labels_required(site):
        await site.submit_with("x", labels={"cost-center": "42"}, annotations={"note": "hello"})
        await eventually_async(site.has_pods("x", 4))
        children = await site.children()
        assert {child["metadata"]["labels"]["cost-center"] for child in children} == {"42"}
        without = [child for child in children if child["metadata"]["annotations"].get("note") != "hello"]
        assert [child["metadata"]["name"] for child in without] == ["x-driver"], (
            "the account's are the template's alone"
        )
        assert len(children) == 13

        await site.edit("x", labels={"cost-center": "43"}, annotations=None)

        async def followed() -> bool:
            around = (SERVICE, SERVICE_ACCOUNT, ROLE, ROLE_BINDING, NETWORK_POLICY, CLAIM)
            found = [child["metadata"] for resource in around for child in (await site.all(resource)).values()]
            ours = [metadata for metadata in found if LABEL_JOB in metadata.get("labels", {})]
            noted = [m for m in ours if "note" in m["annotations"] and m["name"] != "x-checkpoint"]
            return {metadata["labels"]["cost-center"] for metadata in ours} == {"43"} and not noted

        await eventually_async(followed)
        assert {pod["metadata"]["labels"]["cost-center"] for pod in (await site.all(POD)).values()} == {"42"}


async def test_a_job_without_them_is_told_what_the_policy_says(site: Site) -> None:
    async with site.operator(), labels_required(site):
        await site.submit_with("x")
        await eventually_async(site.says("x", "PodRefused"))
        assert "label cost-center is required" in (await site.condition("x", "Scheduled"))["message"]
        await site.edit("x", labels={"cost-center": "42"})
        await eventually_async(site.has_pods("x", 4))


async def test_driver_pods_pull_images_as_those_of_other_roles_do(site: Site) -> None:
    secrets = [{"name": "registry"}]
    await site.admin.patch(SERVICE_ACCOUNT, site.namespace, "default", {"imagePullSecrets": secrets}, MERGE_PATCH)
    async with site.operator():
        await site.submit_with("x")
        await eventually_async(site.has_pods("x", 4))
        assert all(pod["spec"]["imagePullSecrets"] == secrets for pod in (await site.all(POD)).values())
        # OpenShift adds one of its own to every account.
        more = [*secrets, {"name": "dockercfg"}]
        await site.admin.patch(SERVICE_ACCOUNT, site.namespace, "x-driver", {"imagePullSecrets": more}, MERGE_PATCH)
        await site.edit("x", labels={"team": "a"})

        async def applied() -> bool:
            return (await site.get(SERVICE_ACCOUNT, "x-driver"))["metadata"]["labels"].get("team") == "a"

        await eventually_async(applied)
        assert (await site.get(SERVICE_ACCOUNT, "x-driver"))["imagePullSecrets"] == more


async def test_a_template_brings_an_account_or_says_what_the_operators_has(site: Site) -> None:
    await site.put(SERVICE_ACCOUNT, "trainers")
    role = {"eks.amazonaws.com/role-arn": "arn:aws:iam::1:role/x"}
    await site.runtime(driverServiceAccount={"annotations": role, "imagePullSecrets": [{"name": "own"}]})
    async with site.operator():
        await site.submit_with("x")
        await eventually_async(site.has_pods("x", 4))
        account = await site.get(SERVICE_ACCOUNT, "x-driver")
        assert role.items() <= account["metadata"]["annotations"].items()
        assert account["imagePullSecrets"] == [{"name": "own"}]
        own = {"template": {"spec": {"serviceAccountName": "trainers"}}}
        await site.runtime(driverServiceAccount=None, roles={"driver": own})
        await site.submit_with("y")
        await eventually_async(site.has_pods("y", 4))
        assert (await site.get(POD, "y-driver-0-a0"))["spec"]["serviceAccountName"] == "trainers"
        assert "y-driver" not in await site.all(SERVICE_ACCOUNT)
        (subject,) = (await site.get(ROLE_BINDING, "y-driver"))["subjects"]
        assert subject["name"] == "trainers"


async def test_jobs_whose_names_begin_alike_run_side_by_side(site: Site) -> None:
    async with site.operator():
        await site.submit_with("x")
        await site.submit_with("x-reward")
        await eventually_async(site.has_pods("x", 4))
        await eventually_async(site.has_pods("x-reward", 4))


async def test_a_jobs_old_networkpolicy_and_token_go(site: Site) -> None:
    async with site.operator():
        await site.submit_with("x")
        await eventually_async(site.has_pods("x", 4))
        job = await site.get(RL_JOB, "x")
        spec = (await site.get(NETWORK_POLICY, "x-job"))["spec"]
        owner = {
            "apiVersion": job["apiVersion"],
            "kind": "RLJob",
            "name": "x",
            "uid": job["metadata"]["uid"],
            "controller": True,
        }
        metadata = {"namespace": site.namespace, "name": "x", "labels": {LABEL_JOB: "x"}, "ownerReferences": [owner]}
        body = {"apiVersion": NETWORK_POLICY.api_version, "kind": "NetworkPolicy", "metadata": metadata, "spec": spec}
        await site.admin.create(NETWORK_POLICY, body)
        await eventually_async(site.is_gone(NETWORK_POLICY, "x"))
        assert set(await site.all(NETWORK_POLICY)) == {"x-job", "x-reward"}
        token = job["status"]["rayTokenSecret"]
        await site.edit("x", suspend=True)
        await eventually_async(site.is_gone(SECRET, token))
        await site.edit("x", suspend=False)
        await eventually_async(site.has_pods("x", 4))
        assert token not in await site.all(SECRET)


async def test_a_job_created_anew_takes_over_the_claim_of_its_predecessor(site: Site) -> None:
    """As a GitOps tool does after ttlSecondsAfterFinished."""
    async with site.operator():
        await site.submit_with("x")
        await eventually_async(site.has_pods("x", 4))
        claim = (await site.get(CLAIM, "x-checkpoint"))["metadata"]["uid"]
        await site.delete(RL_JOB, "x")
        await eventually_async(site.is_gone(RL_JOB, "x"))
        await site.submit_with("x")

        async def told() -> bool:
            condition = await site.condition("x", "Scheduled")
            return condition.get("reason") == "NameTaken" and "spec.checkpoint.adopt: true" in condition["message"]

        await eventually_async(told)
        await site.edit("x", checkpoint={"adopt": True})
        uid = (await site.get(RL_JOB, "x"))["metadata"]["uid"]

        async def has_new_pods() -> bool:
            owners = [pod["metadata"]["ownerReferences"][0]["uid"] for pod in (await site.all(POD)).values()]
            return owners == [uid] * 4

        await eventually_async(has_new_pods)
        adopted = (await site.get(CLAIM, "x-checkpoint"))["metadata"]
        assert adopted["uid"] == claim
        assert adopted["labels"][LABEL_JOB_UID] == adopted["annotations"][LABEL_JOB_UID] == uid
