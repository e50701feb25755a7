"""What people use the cluster for: pods, names, logs, images, lost nodes."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from e2e.cluster import Cluster, ClusterError
from e2e.cluster.errors import CommandError
from tests.support.waiting import DEADLINE_SECONDS, eventually

pytestmark = [pytest.mark.cluster, pytest.mark.extended]

NAMESPACE = "cluster-in-use"
SERVE = "import http.server as h; h.ThreadingHTTPServer(('', 8000), h.SimpleHTTPRequestHandler).serve_forever()"
RESTRICTED = {
    "runAsNonRoot": True,
    "runAsUser": 10001,
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"]},
    "seccompProfile": {"type": "RuntimeDefault"},
}


@pytest.fixture(scope="module")
def busy(cluster: Cluster) -> Iterator[Cluster]:
    """The cluster with a namespace that enforces Pod Security `restricted`, a Deployment of Python and its Service."""
    image = cluster.load_image("base")
    cluster.kubectl("create", "namespace", NAMESPACE)
    cluster.kubectl("label", "namespace", NAMESPACE, "pod-security.kubernetes.io/enforce=restricted")
    cluster.kubectl("apply", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": _web(image)}))
    _rolled_out(cluster)
    yield cluster
    cluster.kubectl("delete", "namespace", NAMESPACE, "--wait=false")


def _web(image: str) -> list[dict[str, Any]]:
    container = {
        "name": "python",
        "image": image,
        "command": ["python3", "-u", "-c", SERVE],
        "securityContext": RESTRICTED,
        "resources": {"requests": {"cpu": "50m"}},
        "readinessProbe": {"httpGet": {"port": 8000}, "periodSeconds": 1},
    }
    labels = {"app": "web"}
    spread = {"maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "DoNotSchedule"}
    # Lost quickly, so that the test of a lost node needs no five minutes; but not when a node only stalls.
    gone = {
        "key": "node.kubernetes.io/unreachable",
        "operator": "Exists",
        "effect": "NoExecute",
        "tolerationSeconds": 10,
    }
    pod = {
        "containers": [container],
        "terminationGracePeriodSeconds": 1,
        "tolerations": [gone],
        "topologySpreadConstraints": [{**spread, "labelSelector": {"matchLabels": labels}}],
    }
    return [
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": "web", "namespace": NAMESPACE},
            "spec": {
                "replicas": 2,
                "selector": {"matchLabels": labels},
                "template": {"metadata": {"labels": labels}, "spec": pod},
            },
        },
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": "web", "namespace": NAMESPACE},
            "spec": {"selector": labels, "ports": [{"port": 80, "targetPort": 8000}]},
        },
    ]


def test_pods_reach_services_by_name_and_nothing_outside(busy: Cluster) -> None:
    pod = _pods(busy)[0]
    # A Service is reachable once kube-proxy has learned of its pods, some time after they are ready.
    eventually(lambda: _fetched(busy, pod), "200".__eq__)
    outside = "import socket; socket.create_connection(('192.0.2.1', 80), 5)"
    with pytest.raises(CommandError, match="Network is unreachable"):
        busy.kubectl("-n", NAMESPACE, "exec", pod, "--", "python3", "-c", outside)
    assert "GET / HTTP" in busy.kubectl("-n", NAMESPACE, "logs", "deployment/web", "--all-pods")


def _fetched(busy: Cluster, pod: str) -> str:
    """The HTTP status with which the Service answers a pod, or why it doesn't."""
    fetch = (
        "import urllib.request as r\n"
        "try: print(r.urlopen('http://web.cluster-in-use.svc.cluster.local').status)\n"
        "except OSError as error: print(error)"
    )
    return busy.kubectl("-n", NAMESPACE, "exec", pod, "--", "python3", "-c", fetch).strip()


def test_pods_run_on_both_nodes(busy: Cluster) -> None:
    placed = busy.kubectl("-n", NAMESPACE, "get", "pods", "-o", "jsonpath={.items[*].spec.nodeName}").split()
    assert {"node0", "node1"} <= set(placed)


def test_a_running_pods_cpu_can_be_resized(busy: Cluster) -> None:
    pod = _pods(busy)[0]
    patch = {"spec": {"containers": [{"name": "python", "resources": {"requests": {"cpu": "70m"}}}]}}
    busy.kubectl("-n", NAMESPACE, "patch", "pod", pod, "--subresource=resize", "--patch", json.dumps(patch))
    actual = (
        "jsonpath={.status.containerStatuses[0].resources.requests.cpu} {.status.containerStatuses[0].restartCount}"
    )
    eventually(lambda: busy.kubectl("-n", NAMESPACE, "get", "pod", pod, "-o", actual), "70m 0".__eq__)


def test_a_lost_node_is_noticed_and_comes_back(busy: Cluster) -> None:
    node = busy.node("node1")
    lost = {pod for pod in _pods(busy) if _node_of(busy, pod) == node.name}
    assert lost
    node.kill_kubelet()
    eventually(lambda: not node.ready(busy.api))
    eventually(lambda: _evicted(busy), lost.issubset)
    running = node.ctr("tasks", "list", "--quiet").split()
    assert running, "containers of a node whose kubelet is lost run on"
    node.power_off()
    node.power_on()
    eventually(lambda: node.ready(busy.api))
    _rolled_out(busy)
    eventually(lambda: _pods(busy), lost.isdisjoint)


def test_an_unknown_image_is_named(cluster: Cluster) -> None:
    with pytest.raises(ClusterError, match="'nonsense' is neither an archive nor one of our images: base"):
        cluster.load_image("nonsense")


def _rolled_out(cluster: Cluster) -> None:
    """Waits until all pods of the Deployment are available."""
    limit = f"--timeout={DEADLINE_SECONDS:g}s"
    cluster.kubectl("-n", NAMESPACE, "rollout", "status", "deployment/web", limit, timeout=None)


def _pods(cluster: Cluster) -> list[str]:
    running = ["--field-selector=status.phase=Running", "-o", "jsonpath={.items[*].metadata.name}"]
    return cluster.kubectl("-n", NAMESPACE, "get", "pods", *running).split()


def _evicted(cluster: Cluster) -> set[str]:
    """Pods that Kubernetes has given up; those of a node that doesn't answer stay so until it is back."""
    given_up = "jsonpath={.items[?(@.metadata.deletionTimestamp)].metadata.name}"
    return set(cluster.kubectl("-n", NAMESPACE, "get", "pods", "-o", given_up).split())


def _node_of(cluster: Cluster, pod: str) -> str:
    return cluster.kubectl("-n", NAMESPACE, "get", "pod", pod, "-o", "jsonpath={.spec.nodeName}")
