"""The admission policies on a test cluster, and tokens as drivers have them."""

from __future__ import annotations

import json

from e2e.cluster import Cluster
from longboat_crds.policies import policies
from longboat_operator.model import Object

# The account that the policies take for an operator's. One for all tests of a cluster: policies are cluster-wide.
OPERATOR_NAMESPACE, OPERATOR_ACCOUNT = "default", "test-operator"


def install_policies(cluster: Cluster) -> None:
    """Installs the policies; they take effect some moments later."""
    operators = f"['system:serviceaccount:{OPERATOR_NAMESPACE}:{OPERATOR_ACCOUNT}']"
    apply(cluster, *(body for bodies in policies(operators).values() for body in bodies))


def apply(cluster: Cluster, *objects: Object) -> None:
    """Applies objects as the administrator."""
    listed = {"apiVersion": "v1", "kind": "List", "items": [dict(body) for body in objects]}
    cluster.kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", stdin=json.dumps(listed))


def driver_pod(cluster: Cluster, namespace: str, name: str, account: str) -> str:
    """Creates a pod of this account that no node takes, and returns a token of that pod."""
    body = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"namespace": namespace, "name": name},
        "spec": {
            "serviceAccountName": account,
            "nodeSelector": {"test.longboat.dev/none": "none"},
            "containers": [{"name": "driver", "image": "localhost/none:1"}],
        },
    }
    cluster.kubectl("create", "-f", "-", stdin=json.dumps(body))
    bound = ("--bound-object-kind", "Pod", "--bound-object-name", name)
    return cluster.kubectl("-n", namespace, "create", "token", account, *bound).strip()
