"""The chart's and the examples' objects at an API server."""

import json
from pathlib import Path

import pytest

from e2e import installation
from e2e.cluster.cluster import Cluster
from e2e.cluster.errors import CommandError
from e2e.tests.api.objects import NAMESPACE, REPOSITORY
from longboat_crds.base import Role
from longboat_crds.load import load, load_job
from longboat_crds.objects import ClusterRLRuntime
from longboat_operator.pods.names import JobRef
from longboat_operator.pods.pod import build_pod

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(120)]


def test_the_operators_pod_is_let_into_a_restricted_namespace(server: Cluster, restricted: str) -> None:
    name = installation.RELEASE
    deployment = json.loads(server.kubectl("-n", installation.NAMESPACE, "get", "deployment", name, "-o", "json"))
    spec = deployment["spec"]["template"]["spec"] | {"serviceAccountName": "default"}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "operator"}, "spec": spec}
    dry_run = ["-n", restricted, "create", "--dry-run=server", "-f", "-"]
    server.kubectl(*dry_run, stdin=json.dumps(pod))
    spec["containers"][0]["securityContext"]["allowPrivilegeEscalation"] = True
    with pytest.raises(CommandError, match="violates PodSecurity"):
        server.kubectl(*dry_run, stdin=json.dumps(pod))


def test_a_release_for_one_namespace_has_no_rights_elsewhere_and_leaves_nothing(server: Cluster) -> None:
    namespace, account = "team", "system:serviceaccount:team:second-longboat"
    settings = ["crds.install=false", "policies.install=false", "replicas=0", f"watchNamespaces={{{NAMESPACE}}}"]
    installation.helm(
        server.kubeconfig,
        "install",
        "second",
        str(installation.CHART),
        "--namespace",
        namespace,
        "--create-namespace",
        *(word for setting in settings for word in ("--set", setting)),
    )
    asked = ["auth", "can-i", "-q", "create", "pods", "--as", account, "-n"]
    server.kubectl(*asked, NAMESPACE)
    with pytest.raises(CommandError):
        server.kubectl(*asked, "default")
    installation.helm(server.kubeconfig, "uninstall", "second", "--namespace", namespace, "--wait")
    kinds = (
        "deployments,services,serviceaccounts,roles,rolebindings,clusterroles,clusterrolebindings,networkpolicies,crds"
    )
    left = server.kubectl("get", kinds, "-A", "-l", "app.kubernetes.io/instance=second", "-o", "name")
    assert left == ""


@pytest.mark.parametrize("file", sorted((REPOSITORY / "examples/gpu").glob("*.yaml")), ids=lambda file: file.name)
def test_gpu_examples_are_accepted(server: Cluster, file: Path) -> None:
    server.kubectl("-n", NAMESPACE, "apply", "--dry-run=server", "-f", str(file))


def test_pods_of_the_gpu_example_are_accepted(server: Cluster, restricted: str) -> None:
    folder = REPOSITORY / "examples/gpu"
    job, runtime = load_job((folder / "qwen2.5-7b.yaml").read_text()), load((folder / "runtime.yaml").read_text())
    assert isinstance(runtime, ClusterRLRuntime)
    ref = JobRef(restricted, job.metadata.name, "00000000-0000-0000-0000-000000000000")
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": ref.driver_account}}
    server.kubectl("-n", restricted, "create", "-f", "-", stdin=json.dumps(account))
    for role in Role:
        body = build_pod(ref, job.spec, runtime.spec, "revision", role, 0, 0, token="token", one_node=False)
        made = json.loads(server.kubectl("create", "--dry-run=server", "-o", "json", "-f", "-", stdin=json.dumps(body)))
        containers = {container["name"]: container for container in made["spec"]["containers"]}
        if role in (Role.ROLLOUT, Role.TRAINER):
            assert list(containers) == [role]
            assert containers[role]["resources"]["limits"]["nvidia.com/gpu"] == "1"


def test_the_chart_makes_runtime_templates(server: Cluster) -> None:
    runtime = json.loads(server.kubectl("get", "crlrt", "cpu", "-o", "json"))
    assert runtime["spec"]["image"] == "longboat:1"
    assert runtime["spec"]["command"] == ["longboat"]
