"""Tests what the operator's account and people may do."""

import json
from functools import partial

import pytest

from e2e.cluster.cluster import Cluster
from e2e.cluster.errors import CommandError
from e2e.tests.api.objects import NAMESPACE, OPERATOR, Jobs, NewJob, listed, may
from longboat_operator.pods.access import driver_account, driver_role, driver_role_binding
from tests.support.waiting import eventually

pytestmark = pytest.mark.cluster


@pytest.mark.parametrize(
    ("verb", "resource", "allowed"),
    [
        ("create", "secrets", True),
        ("get", "secrets", False),
        ("list", "secrets", False),
        ("delete", "secrets", True),
        ("deletecollection", "secrets", False),
        ("delete", "networkpolicies", True),
        ("get", "serviceaccounts", True),
        ("delete", "serviceaccounts", False),
        ("patch", "persistentvolumeclaims", True),
        ("delete", "persistentvolumeclaims", False),
        ("list", "events", True),
        ("create", "pods", True),
        ("patch", "pods/resize", True),
        ("update", "pods", False),
        ("create", "pods/exec", False),
        ("get", "pods/log", False),
        ("patch", "rljobs/status", True),
        ("patch", "rljobs", False),
        ("delete", "rljobs", True),
        ("list", "clusterrlruntimes", True),
        ("create", "clusterrlruntimes", False),
        ("escalate", "roles", False),
        ("list", "nodes", True),
        ("patch", "nodes", False),
    ],
)
def test_what_the_operator_may(server: Cluster, verb: str, resource: str, allowed: bool) -> None:
    kind, _, subresource = resource.partition("/")
    part = [f"--subresource={subresource}"] if subresource else []
    assert may(server, OPERATOR, verb, kind, *part, "-n", NAMESPACE) is allowed


def test_the_operator_can_give_a_driver_its_rights_and_no_more(server: Cluster, jobs: Jobs, new_job: NewJob) -> None:
    ref = jobs.reference(new_job(name="given"))
    made = [driver_account(ref), driver_role(ref), driver_role_binding(ref)]
    server.kubectl("create", "--as", OPERATOR, "-f", "-", stdin=json.dumps(listed(made)))
    more = json.loads(json.dumps(driver_role(ref)))
    more["metadata"]["name"] = "more"
    more["rules"].append({"apiGroups": [""], "resources": ["secrets"], "verbs": ["get"]})
    with pytest.raises(CommandError, match="attempting to grant RBAC permissions not currently held"):
        server.kubectl("create", "--as", OPERATOR, "-f", "-", stdin=json.dumps(more))


def test_an_editor_of_a_namespace_runs_jobs_and_reads_templates(server: Cluster) -> None:
    server.kubectl("-n", NAMESPACE, "create", "rolebinding", "researcher", "--clusterrole=edit", "--user=researcher")
    # A controller aggregates the editor's rights.
    for allowed in (["create", "rljobs"], ["patch", "rljobs", "--subresource=scale"], ["list", "rlruntimes"]):
        eventually(partial(may, server, "researcher", *allowed, "-n", NAMESPACE))
    for refused in (["patch", "rljobs", "--subresource=status"], ["create", "rlruntimes"]):
        assert not may(server, "researcher", *refused, "-n", NAMESPACE)
