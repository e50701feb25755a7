"""Who may write a job's status, and what the operator may delete: the admission policies on a real API server."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import cycle
from typing import Any

import pytest

from e2e.cluster import Cluster
from e2e.cluster.errors import CommandError
from e2e.tests.api.objects import STARTED, Jobs, Refused, once_known
from longboat_crds.base import Role
from longboat_operator.kube.client import KubeClient
from longboat_operator.pods.access import driver_account, driver_role, driver_role_binding
from longboat_operator.pods.names import JobRef, Place
from tests.crds.manifests import changed
from tests.support.driver_tokens import (
    OPERATOR_ACCOUNT,
    OPERATOR_NAMESPACE,
    apply,
    create_namespace,
    driver_pod,
    install_policies,
)
from tests.support.waiting import eventually

pytestmark = pytest.mark.cluster

SHARED = "trainers"
TRAINING = {"incarnation": 2, "state": "Running", "step": 3}
CHECKPOINT = {"incarnation": 2, "step": 2}


def granted(number: int, attempt: int = 0) -> dict[str, Any]:
    """The operator's part of the status of a job whose driver has this number, in the pod of this attempt."""
    return {
        "phase": "Running",
        "startTime": STARTED,
        "allocation": {"incarnation": {"number": number, "request": "token"}},
        "roles": {
            "driver": {"desired": 1, "ready": 1, "readyText": "1/1", "intact": [{"attempt": attempt, "indexes": "0"}]}
        },
    }


@dataclass
class Tenants:
    """A namespace with two jobs, `a` and `b`, whose drivers have one ServiceAccount."""

    cluster: Cluster
    namespace: str
    admin: Jobs

    def reference(self, name: str) -> JobRef:
        return self.admin.reference(name)

    def driver(self, name: str, attempt: int = 0, account: str = SHARED) -> Jobs:
        """Jobs as that driver pod of the job sees them."""
        pod = self.reference(name).pod(Role.DRIVER, Place("", 0), attempt)
        driver = Jobs(self.cluster, self.namespace, driver_pod(self.cluster, self.namespace, pod, account))
        once_known(lambda: driver.get(name))
        return driver

    def status(self, name: str) -> dict[str, Any]:
        status: dict[str, Any] = self.admin.get(name)["status"]
        return status


@pytest.fixture
async def prepared(admin: KubeClient, cluster: Cluster) -> Cluster:
    """The cluster with Longboat's kinds, and its policies in effect."""
    install_policies(cluster)
    namespace = name = f"probe-{uuid.uuid4().hex[:8]}"
    create_namespace(cluster, namespace)
    jobs = Jobs(cluster, namespace)
    jobs.create(
        changed({"metadata.name": name, "metadata.namespace": namespace, "spec.rewards.0.parameters": {"a": 1}})
    )
    jobs.merge(name, {"status": {"startTime": STARTED}}, "status")
    reward = jobs.get(name)["spec"]["rewards"][0]
    renamed = cycle([{"a": 2}, {"a": 3}])

    def refused() -> bool:
        try:
            jobs.merge(name, {"spec": {"rewards": [{**reward, "parameters": next(renamed)}]}})
        except Refused:
            return True
        return False

    eventually(refused)
    cluster.kubectl("delete", "namespace", namespace, "--wait=false")
    return cluster


@pytest.fixture
def tenants(prepared: Cluster) -> Iterator[Tenants]:
    namespace = f"tenants-{uuid.uuid4().hex[:8]}"
    create_namespace(prepared, namespace)
    made = Tenants(prepared, namespace, Jobs(prepared, namespace))
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"namespace": namespace, "name": SHARED}}
    apply(prepared, account)
    for name in ("a", "b"):
        made.admin.create(changed({"metadata.name": name, "metadata.namespace": namespace}))
        made.admin.apply_status(name, "longboat-operator", granted(2))
        ref = made.reference(name)
        apply(prepared, driver_role(ref), driver_role_binding(ref, SHARED))
    yield made
    prepared.kubectl("delete", "namespace", namespace, "--wait=false")


def test_each_of_two_drivers_with_one_account_writes_its_own_jobs_status(tenants: Tenants) -> None:
    demand = {"incarnationRequest": "token", "rollout": {"incarnation": 2, "number": 1, "replicas": 2}}
    problem = {"reason": "StageStuck", "message": "train has taken 1800 s"}
    status = {"training": TRAINING, "demand": demand, "checkpoint": CHECKPOINT, "problem": problem}
    for name in ("a", "b"):
        driver = tenants.driver(name)
        written = driver.apply_status(name, "longboat-driver", status)["status"]
        assert {part: written[part] for part in status} == status
        later = status | {"training": TRAINING | {"step": 4}, "checkpoint": CHECKPOINT | {"step": 4}}
        driver.apply_status(name, "longboat-driver", later)
        driver.apply_status(name, "longboat-driver", {"training": TRAINING, "demand": {"incarnationRequest": "next"}})


def write(driver: Jobs, way: str, name: str, status: dict[str, Any], current: dict[str, Any] | None = None) -> None:
    """Writes by a merge patch of these fields, or by applying them together with the rest of the driver's current ones."""
    if way == "merge":
        driver.merge(name, {"status": status}, "status")
    else:
        whole = {**(current or {}), **status}
        driver.apply_status(
            name, "longboat-driver", {part: value for part, value in whole.items() if value is not None}
        )


OTHERS = {
    "checkpoint": {"checkpoint": CHECKPOINT},
    "demand": {"demand": {"rollout": {"incarnation": 2, "number": 9, "replicas": 9}}},
    "request": {"demand": {"incarnationRequest": "mine"}},
    "incarnation": {"training": {**TRAINING, "incarnation": 2}},
    "problem": {"problem": {"reason": "StageStuck", "message": "no"}},
    "allocation": {"allocation": {"incarnation": {"number": 9, "request": "mine"}}},
}


@pytest.mark.parametrize("way", ["merge", "apply"])
def test_no_driver_writes_another_jobs_status_although_it_has_the_same_account(tenants: Tenants, way: str) -> None:
    driver = tenants.driver("a")
    once_known(lambda: driver.get("b"))  # by RBAC it may: both Roles are bound to the account
    before = tenants.status("b")
    for part, status in OTHERS.items():
        with pytest.raises(Refused, match="job's own driver pod") as caught:
            write(driver, way, "b", status)
        assert (caught.value.status, tenants.status("b")) == (403, before), part


OLDER = {
    "incarnation": {"training": {**TRAINING, "incarnation": 1}},
    "no incarnation": {"training": None},
    "checkpoint": {"checkpoint": {"incarnation": 1, "step": 9}},
    "demand for pods": {"demand": {"rollout": {"incarnation": 1, "number": 9, "replicas": 9}}},
    "demand for CPUs": {"demand": {"reward": {"incarnation": 1, "number": 9}}},
    "all": {
        "training": {**TRAINING, "incarnation": 1},
        "checkpoint": {"incarnation": 1, "step": 9},
        "demand": {"rollout": {"incarnation": 1, "number": 9, "replicas": 9}},
    },
}


@pytest.mark.parametrize("way", ["merge", "apply"])
def test_no_older_number_is_written_by_the_drivers_own_pod(tenants: Tenants, way: str) -> None:
    driver = tenants.driver("a")
    current = {
        "training": TRAINING,
        "checkpoint": CHECKPOINT,
        "demand": {"rollout": {"incarnation": 2, "number": 1, "replicas": 1}},
    }
    driver.apply_status("a", "longboat-driver", current)
    before = tenants.status("a")
    for part, status in OLDER.items():
        with pytest.raises(Refused) as caught:
            write(driver, way, "a", status, current)
        assert (caught.value.status, tenants.status("a")) == (403, before), part


def test_a_driver_pod_that_was_replaced_writes_nothing_any_more(tenants: Tenants) -> None:
    """On a node that nobody hears of it may still run, with a valid token; a merge patch needs no number of its own."""
    lost = tenants.driver("a", 0)
    lost.apply_status("a", "longboat-driver", {"training": TRAINING})
    tenants.admin.apply_status("a", "longboat-operator", granted(2, attempt=1))
    before = tenants.status("a")
    for part, status in OTHERS.items():
        with pytest.raises(Refused, match="a newer driver pod runs this job"):
            lost.merge("a", {"status": status}, "status")
        assert tenants.status("a") == before, part
    tenants.driver("a", 1).apply_status("a", "longboat-driver", {"training": TRAINING | {"step": 5}})


def test_a_driver_is_superseded_as_soon_as_the_next_number_is_granted(tenants: Tenants) -> None:
    driver = tenants.driver("a")
    driver.apply_status("a", "longboat-driver", {"training": TRAINING, "checkpoint": CHECKPOINT})
    tenants.admin.apply_status("a", "longboat-operator", granted(3))
    for status in (
        {"training": TRAINING | {"step": 9}},
        {"training": TRAINING, "checkpoint": CHECKPOINT | {"step": 9}},
    ):
        with pytest.raises(Refused):
            driver.apply_status("a", "longboat-driver", {"checkpoint": CHECKPOINT} | status)
    # The next start first asks, and leaves what it finds; then it may have resumed from an older checkpoint than is shown.
    found = {"training": TRAINING, "checkpoint": CHECKPOINT}
    driver.apply_status("a", "longboat-driver", {**found, "demand": {"incarnationRequest": "next"}})
    now = {"training": {**TRAINING, "incarnation": 3, "step": 1}}
    driver.apply_status("a", "longboat-driver", {**now, "checkpoint": {"incarnation": 1, "step": 1}})


@pytest.mark.parametrize("account", ["stranger", "a-driver"])
def test_no_other_account_writes_a_status_whatever_rbac_grants_it(tenants: Tenants, account: str) -> None:
    """Nor one with the name that drivers' accounts have, by a token of no pod; nor a pod of another name."""
    namespace, cluster = tenants.namespace, tenants.cluster
    apply(cluster, {**driver_account(tenants.reference("a")), "metadata": {"namespace": namespace, "name": account}})
    cluster.kubectl(
        "-n",
        namespace,
        "create",
        "rolebinding",
        "too-much",
        "--clusterrole=cluster-admin",
        f"--serviceaccount={namespace}:{account}",
    )
    tokens = [
        cluster.kubectl("-n", namespace, "create", "token", account).strip(),
        driver_pod(cluster, namespace, "a-driver-0-a0-shell", account),
        driver_pod(cluster, namespace, "a-trainer-0-a0", account),
    ]
    for token in tokens:
        other = Jobs(cluster, namespace, token)
        once_known(lambda other=other: other.get("a"))
        with pytest.raises(Refused, match="of all ServiceAccounts only the operator's"):
            other.merge("a", {"status": {"training": TRAINING}}, "status")
    assert "training" not in tenants.status("a")


def test_a_pod_of_another_namespace_is_no_driver(tenants: Tenants, namespace: str) -> None:
    cluster = tenants.cluster
    eventually(lambda: "default" in cluster.kubectl("-n", namespace, "get", "serviceaccounts", "-o", "name"))
    token = driver_pod(cluster, namespace, "a-driver-0-a0", "default")
    cluster.kubectl(
        "-n",
        tenants.namespace,
        "create",
        "rolebinding",
        "far",
        "--clusterrole=cluster-admin",
        f"--serviceaccount={namespace}:default",
    )
    far = Jobs(cluster, tenants.namespace, token)
    once_known(lambda: far.get("a"))
    with pytest.raises(Refused, match="of all ServiceAccounts only the operator's"):
        far.merge("a", {"status": {"training": TRAINING}}, "status")


def test_the_operator_deletes_only_what_a_job_controls(tenants: Tenants) -> None:
    cluster, namespace = tenants.cluster, tenants.namespace
    account = {"namespace": OPERATOR_NAMESPACE, "name": OPERATOR_ACCOUNT}
    apply(cluster, {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": account})
    operator = f"system:serviceaccount:{OPERATOR_NAMESPACE}:{OPERATOR_ACCOUNT}"
    cluster.kubectl(
        "-n", namespace, "create", "rolebinding", "operator", "--clusterrole=cluster-admin", f"--user={operator}"
    )
    owner = tenants.reference("a").owner
    shared = cluster.kubectl("-n", namespace, "get", "serviceaccount", SHARED, "-o", "jsonpath={.metadata.uid}")
    owners = {
        "jobs": [owner],
        "nobodys": [],
        "not-controlled": [{**owner, "controller": False}],
        "another-kinds": [{**owner, "apiVersion": "v1", "kind": "ServiceAccount", "name": SHARED, "uid": shared}],
    }
    network = {"spec": {"podSelector": {}, "policyTypes": ["Ingress"]}}
    for kind, version, more in (("Secret", "v1", {}), ("NetworkPolicy", "networking.k8s.io/v1", network)):
        for name, references in owners.items():
            metadata = {"namespace": namespace, "name": name, "ownerReferences": references}
            cluster.kubectl(
                "create",
                "-f",
                "-",
                stdin=json.dumps({"apiVersion": version, "kind": kind, "metadata": metadata, **more}),
            )
        delete = ("-n", namespace, "delete", kind, "--wait=false", "--as", operator)
        for name in ("nobodys", "not-controlled", "another-kinds"):
            with pytest.raises(CommandError, match="deletes only what an RLJob controls"):
                cluster.kubectl(*delete, name)
        cluster.kubectl(*delete, "jobs")
