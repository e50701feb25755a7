"""What the operator's account and people may do."""

import json
import time

import pytest

from e2e import installation
from e2e.cluster.cluster import Cluster
from e2e.cluster.errors import CommandError
from e2e.tests.api.objects import NAMESPACE, Jobs, NewJob, listed
from longboat_operator.pods.access import driver_account, driver_role, driver_role_binding

pytestmark = pytest.mark.cluster

OPERATOR = f"system:serviceaccount:{installation.NAMESPACE}:{installation.RELEASE}"


@pytest.mark.parametrize(
    ("verb", "resource", "allowed"),
    [
        ("create", "secrets", True),
        ("get", "secrets", False),
        ("list", "secrets", False),
        ("delete", "secrets", False),
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
        ("list", "nodes", False),
    ],
)
def test_what_the_operator_may(server: Cluster, verb: str, resource: str, allowed: bool) -> None:
    kind, _, subresource = resource.partition("/")
    asked = ["auth", "can-i", verb, kind, "-n", NAMESPACE, "--as", OPERATOR, "-q"]
    asked += [f"--subresource={subresource}"] if subresource else []
    if allowed:
        server.kubectl(*asked)
    else:
        with pytest.raises(CommandError):
            server.kubectl(*asked)


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
    deadline = time.monotonic() + 300  # roles are aggregated by a controller
    while "rljobs.longboat.dev" not in server.kubectl("auth", "can-i", "--list", "-n", NAMESPACE, "--as=researcher"):
        assert time.monotonic() < deadline
        time.sleep(0.2)
    may = ["auth", "can-i", "-q", "-n", NAMESPACE, "--as=researcher"]
    for allowed in (["create", "rljobs"], ["patch", "rljobs", "--subresource=scale"], ["list", "rlruntimes"]):
        server.kubectl(*may, *allowed)
    for refused in (["patch", "rljobs", "--subresource=status"], ["create", "rlruntimes"]):
        with pytest.raises(CommandError):
            server.kubectl(*may, *refused)
