"""Causes that lie outside a job are told in its status, and the job goes on as soon as they are gone."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from operator import contains, eq, not_
from typing import Any

import pytest

from e2e import small_job
from e2e.cluster.errors import CommandError
from e2e.jobs import Job
from e2e.site import Site
from e2e.volumes import apply
from tests.support.waiting import eventually

pytestmark = [pytest.mark.cluster, pytest.mark.extended]

ENDLESS = {"policy": "TailBatching", "steps": 100_000, "promptsPerRound": 4}
HOLD = "backup.example.com/hold"
SIDECAR = "log-shipper"
WEBHOOK_FAILS = 'failed calling webhook "pods.policy.example.com"'
REFUSAL = "ask the platform team"
# Nobody listens there.
DEAD_PROXY = "http://127.0.0.1:9"


@contextmanager
def applied(site: Site, in_force: Callable[[], bool], *objects: dict[str, Any]) -> Iterator[None]:
    """Applies objects of the whole cluster for the block, which begins once they are in force."""
    apply(site.cluster, list(objects))
    try:
        eventually(in_force)
        yield
    finally:
        for body in objects:
            site.cluster.kubectl("delete", body["kind"], body["metadata"]["name"])


def answer(site: Site, *arguments: str, stdin: str = "") -> str:
    """Returns what kubectl prints in the namespace, or why it fails."""
    try:
        return site.cluster.kubectl("-n", site.namespace, *arguments, stdin=stdin)
    except CommandError as error:
        return str(error)


def new_pod(site: Site, job: str) -> str:
    """Returns what would become of a new pod of the job, or why it is refused."""
    metadata = {"name": "probe", "labels": {"longboat.dev/job": job}}
    body: dict[str, Any] = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata}
    restricted = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    body["spec"] = {
        "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [{"name": "probe", "image": "localhost/none:1", "securityContext": restricted}],
    }
    return answer(site, "create", "--dry-run=server", "-o", "json", "-f", "-", stdin=json.dumps(body))


def dead_policy_engine(site: Site) -> dict[str, Any]:
    """Returns the webhook of a policy engine whose server is down, asked about each new pod of the namespace."""
    webhook = {
        "name": "pods.policy.example.com",
        "admissionReviewVersions": ["v1"],
        "sideEffects": "None",
        "failurePolicy": "Fail",
        "timeoutSeconds": 2,
        "clientConfig": {"url": "https://127.0.0.1:9"},
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": site.namespace}},
        "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}],
    }
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingWebhookConfiguration",
        "metadata": {"name": "dead-policy-engine"},
        "webhooks": [webhook],
    }


def log_shipper(image: str, job: str) -> list[dict[str, Any]]:
    """Returns the policy by which a platform injects a container that fails every few seconds into all pods of a job."""
    expression = f"""[JSONPatch{{op: "add", path: "/spec/containers/0", value: Object.spec.containers{{
        name: "{SIDECAR}", image: "{image}", imagePullPolicy: "Never", command: ["sh", "-c", "sleep 3; exit 1"],
        securityContext: Object.spec.containers.securityContext{{allowPrivilegeEscalation: false,
            capabilities: Object.spec.containers.securityContext.capabilities{{drop: ["ALL"]}}}}}}}}]"""
    about = {"apiVersion": "admissionregistration.k8s.io/v1", "metadata": {"name": "inject-sidecar"}}
    rules = [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}]
    policy = {
        "failurePolicy": "Fail",
        "reinvocationPolicy": "Never",
        "matchConstraints": {
            "objectSelector": {"matchLabels": {"longboat.dev/job": job}},
            "resourceRules": rules,
        },
        "mutations": [{"patchType": "JSONPatch", "jsonPatch": {"expression": expression}}],
    }
    return [
        {**about, "kind": "MutatingAdmissionPolicy", "spec": policy},
        {**about, "kind": "MutatingAdmissionPolicyBinding", "spec": {"policyName": "inject-sidecar"}},
    ]


def reason(job: Job, kind: str) -> str:
    return str(job.condition(kind).get("reason"))


def message(job: Job, kind: str) -> str:
    return str(job.condition(kind).get("message"))


def event_reasons(site: Site, job: str) -> set[str]:
    listed = site.cluster.api.get(f"/api/v1/namespaces/{site.namespace}/events") or {}
    return {event["reason"] for event in listed.get("items", []) if event["involvedObject"]["name"] == job}


def test_a_webhook_that_is_down_is_told_and_the_job_starts_once_it_is_gone(
    site: Site, new_job: Callable[[str], Job]
) -> None:
    job = new_job("webhook-down")

    def is_down() -> bool:
        return WEBHOOK_FAILS in new_pod(site, job.name)

    with applied(site, is_down, dead_policy_engine(site)):
        job.apply(small_job.spec(rounds=ENDLESS))
        job.wait("reason RequestFailed", lambda: reason(job, "Scheduled"), partial(eq, "RequestFailed"))
        assert WEBHOOK_FAILS in message(job, "Scheduled")
        assert (job.status()["phase"], job.status()["reason"]) == ("Pending", "RequestFailed")
        job.wait("the event", lambda: event_reasons(site, job.name), lambda reasons: "RequestFailed" in reasons)
    job.wait_for_step(1)
    with applied(site, is_down, dead_policy_engine(site)):
        trainer = job.pod("trainer")
        site.cluster.kubectl("-n", site.namespace, "delete", "pod", trainer, "--wait=false")
        job.wait("reason RequestFailed", lambda: reason(job, "RolesReady"), partial(eq, "RequestFailed"))
    job.wait("another trainer", lambda: job.pod_uids("trainer").keys() - {trainer})


def test_an_injected_container_that_keeps_failing_is_shown_and_fails_no_job(
    site: Site, new_job: Callable[[str], Job]
) -> None:
    template = site.cluster.api.get("/apis/longboat.dev/v1alpha1/clusterrlruntimes/host") or {}
    job = new_job("sidecar-fails")
    limits = {f"max{role}Restarts": 0 for role in ("Driver", "Rollout", "Reward", "Trainer")}

    def injects() -> bool:
        return SIDECAR in new_pod(site, job.name)

    with applied(site, injects, *log_shipper(template["spec"]["image"], job.name)):
        job.apply(small_job.spec(rounds=ENDLESS, failurePolicy=limits))
        job.wait("restarts of the sidecar", lambda: restarts(job, SIDECAR), lambda count: count >= 8)
        step = job.wait_for_step(1)
        assert reason(job, "RolesReady") == "ForeignContainerFailing"
        assert f"container {SIDECAR} (not one of Longboat's) ended with exit code 1" in message(job, "RolesReady")
        job.wait_for_step(step + 2)
        assert job.status()["restarts"] == 0


def restarts(job: Job, container: str) -> int:
    statuses = (each for pod in job.pods().values() for each in pod["status"].get("containerStatuses", []))
    return sum(each["restartCount"] for each in statuses if each["name"] == container)


def refusal_of_drivers(site: Site) -> list[dict[str, Any]]:
    """Returns a policy of the platform that refuses every status which a driver of the namespace writes."""
    about = {"apiVersion": "admissionregistration.k8s.io/v1", "metadata": {"name": "no-driver-writes"}}
    account = f"request.userInfo.username.startsWith('system:serviceaccount:{site.namespace}:')"
    policy = {
        "failurePolicy": "Fail",
        "matchConditions": [{"name": "driver", "expression": account}],
        "matchConstraints": {
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": site.namespace}},
            "resourceRules": [
                {
                    "apiGroups": ["longboat.dev"],
                    "apiVersions": ["*"],
                    "operations": ["UPDATE"],
                    "resources": ["rljobs/status"],
                },
                # No driver creates these: they show whether the policy is in force.
                {"apiGroups": [""], "apiVersions": ["*"], "operations": ["CREATE"], "resources": ["configmaps"]},
            ],
        },
        "validations": [{"expression": "false", "message": REFUSAL, "reason": "Forbidden"}],
    }
    binding = {"policyName": "no-driver-writes", "validationActions": ["Deny"]}
    return [
        {**about, "kind": "ValidatingAdmissionPolicy", "spec": policy},
        {**about, "kind": "ValidatingAdmissionPolicyBinding", "spec": binding},
    ]


def test_a_driver_that_is_refused_is_told_of_and_goes_on_once_it_is_not(
    site: Site, new_job: Callable[[str], Job]
) -> None:
    job = new_job("refused-driver")
    job.apply(small_job.spec(failurePolicy={"maxDriverRestarts": 0}, suspend=True))
    driver = (f"--as=system:serviceaccount:{site.namespace}:any", "--as-group=system:masters")

    def refuses() -> bool:
        """Longboat's own policy refuses this account's statuses too, and the API server names either of the two."""
        return REFUSAL in answer(site, "create", "configmap", "probe", *driver, "--dry-run=server")

    with applied(site, refuses, *refusal_of_drivers(site)):
        job.patch({"suspend": False})
        job.wait("reason DriverSilent", lambda: reason(job, "RolesReady"), partial(eq, "DriverSilent"))
        words = message(job, "RolesReady")
        assert "no answer from the API server within 45 s" in words
        assert REFUSAL in words
        assert job.status()["reason"] == "DriverSilent"
    job.wait_for_step(1)
    history = [record for record in job.status()["restartHistory"] if record["reason"] == "DriverSilent"]
    assert history
    assert not any(record["counted"] for record in history)


def test_a_job_behind_a_dead_proxy_trains_and_one_that_a_finalizer_keeps_releases_its_pods(
    site: Site, new_job: Callable[[str], Job]
) -> None:
    """Address blocks in NO_PROXY mean nothing to most programs, and the driver needs no proxy to the API server."""

    def hide(specs: dict[str, Any]) -> None:
        proxies = [{"name": name, "value": DEAD_PROXY} for name in ("HTTP_PROXY", "HTTPS_PROXY")]
        specs["driver"]["containers"][0]["env"] += [*proxies, {"name": "NO_PROXY", "value": "10.0.0.0/8"}]

    job = new_job("kept")
    job.apply(small_job.spec(site.apply_runtime("behind-a-proxy", hide), rounds=ENDLESS))
    job.wait_for_step(1)
    finalizers(site, "rljob", job.name, HOLD)
    trainer = job.pod("trainer")
    finalizers(site, "pod", trainer, HOLD)
    site.cluster.kubectl("-n", site.namespace, "delete", "rljob", job.name, "--wait=false")
    try:
        job.wait("phase Terminating", lambda: job.status().get("phase"), partial(eq, "Terminating"))
        job.wait("the other pods are gone", lambda: set(job.pods()), partial(eq, {trainer}))
        job.wait("the message names the finalizer", lambda: message(job, "Running"), lambda text: contains(text, HOLD))
        job.wait("and the pod that is kept", lambda: message(job, "Running"), lambda text: contains(text, trainer))
    finally:
        finalizers(site, "pod", trainer)
        finalizers(site, "rljob", job.name)
    job.wait("the job is gone", job.get, not_)


def finalizers(site: Site, kind: str, name: str, *names: str) -> None:
    patch = json.dumps({"metadata": {"finalizers": [*names]}})
    site.cluster.kubectl("-n", site.namespace, "patch", kind, name, "--type", "merge", "-p", patch)


def test_a_pod_that_a_finalizer_keeps_blocks_neither_its_place_nor_a_suspension(
    site: Site, new_job: Callable[[str], Job]
) -> None:
    job = new_job("kept-pods")
    job.apply(small_job.spec(rounds=ENDLESS, failurePolicy={"backoffSeconds": 1}))
    step = job.wait_for_step(1)
    first = job.pod("trainer")
    try:
        for name in job.pods():
            finalizers(site, "pod", name, HOLD)
        site.cluster.kubectl("-n", site.namespace, "delete", "pod", first, "--wait=false")
        job.wait("another trainer", lambda: job.pod("trainer"), lambda name: name != first)
        job.wait_for_step(step + 2)
        assert f"pod {first} has ended, but its finalizers block its removal: {HOLD}" in message(job, "RolesReady")
        job.patch({"suspend": True})
        job.wait("phase Suspended", lambda: job.status()["phase"], partial(eq, "Suspended"))
        assert HOLD in message(job, "Suspended")
    finally:
        for name in job.pods():
            finalizers(site, "pod", name)
