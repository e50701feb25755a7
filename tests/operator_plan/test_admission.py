"""The API server takes what is built, in a namespace that enforces Pod Security `restricted`."""

import dataclasses
import json
from collections.abc import Iterator

import pytest

from e2e.cluster import Cluster
from longboat_operator.pods.access import driver_account
from tests.operator_plan.golden_objects import JOB, objects, text

NAMESPACE = "test-admission"
RESTRICTED = {
    "apiVersion": "v1",
    "kind": "Namespace",
    "metadata": {"name": NAMESPACE, "labels": {"pod-security.kubernetes.io/enforce": "restricted"}},
}

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module")
def restricted(cluster: Cluster) -> Iterator[Cluster]:
    """A cluster with the namespace, and the account that the driver's pod needs to be admitted."""
    account = dict(driver_account(dataclasses.replace(JOB, namespace=NAMESPACE)))
    account["metadata"] = {"name": account["metadata"]["name"], "namespace": NAMESPACE}
    cluster.kubectl("apply", "-f", "-", stdin=json.dumps(RESTRICTED))
    cluster.kubectl("apply", "-f", "-", stdin=json.dumps(account))
    yield cluster
    cluster.kubectl("delete", "namespace", NAMESPACE, "--wait=false")


@pytest.mark.parametrize("case", ["plain", "full"])
def test_everything_is_admitted(restricted: Cluster, case: str) -> None:
    for name, bodies in objects(case, dataclasses.replace(JOB, namespace=NAMESPACE)).items():
        answer = restricted.kubectl(
            "apply", "--server-side", "--dry-run=server", "--validate=strict", "-f", "-", stdin=text(bodies)
        )
        assert answer.count("(server dry run)") == len(bodies), f"{case}/{name}"
