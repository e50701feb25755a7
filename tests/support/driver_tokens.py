"""The admission policies in some namespaces of a test cluster, and tokens as drivers have them."""

from __future__ import annotations

import json

from e2e.cluster import Cluster
from longboat_crds.policies import policies
from longboat_operator.model import Object

# The account that the policies take for an operator's. One for all tests of a cluster, as the policies are.
OPERATOR_NAMESPACE, OPERATOR_ACCOUNT = "default", "test-operator"


# Other tests of the cluster have operators with accounts of their own.
_IN_FORCE = {"test.longboat.dev/policies": "in-force"}


def install_policies(cluster: Cluster) -> None:
    """Installs the policies for namespaces that `create_namespace` makes; they take effect some moments later."""
    operators = f"['system:serviceaccount:{OPERATOR_NAMESPACE}:{OPERATOR_ACCOUNT}']"
    scope = {"matchResources": {"namespaceSelector": {"matchLabels": _IN_FORCE}}}
    for policy, binding in policies(operators).values():
        apply(cluster, policy, {**binding, "spec": {**binding["spec"], **scope}})


def create_namespace(cluster: Cluster, name: str) -> None:
    """Creates a namespace in which the policies are in force."""
    apply(cluster, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": _IN_FORCE}})


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
