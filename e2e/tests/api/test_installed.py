"""The chart's and the examples' objects at an API server."""

import json
from pathlib import Path
from typing import Any

import pytest

from e2e import installation
from e2e.cluster.cluster import Cluster
from e2e.cluster.errors import CommandError
from e2e.tests.api.objects import NAMESPACE, REPOSITORY, Jobs, NewJob, Refused, may, once_known
from longboat_crds.base import Role
from longboat_crds.objects import RLRuntime
from longboat_crds.yaml_text import parse
from longboat_operator.pods.names import JobRef
from longboat_operator.pods.pod import build_pod
from longboat_operator.pods.roles import ROLES
from longboat_runtime.plan import documents
from tests.support.waiting import eventually

pytestmark = pytest.mark.cluster


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

    eventually(lambda: may(server, account, "create", "pods", "-n", NAMESPACE))
    assert not may(server, account, "create", "pods", "-n", "default")
    installation.helm(server.kubeconfig, "uninstall", "second", "--namespace", namespace, "--wait")
    kinds = (
        "deployments,services,serviceaccounts,roles,rolebindings,clusterroles,clusterrolebindings,networkpolicies,crds"
    )
    remains = server.kubectl("get", kinds, "-A", "-l", "app.kubernetes.io/instance=second", "-o", "name")
    assert remains == ""


@pytest.mark.parametrize(
    "file",
    sorted(file for file in (REPOSITORY / "examples/gpu").rglob("*.yaml") if file.name != "kustomization.yaml"),
    ids=lambda file: str(file.relative_to(REPOSITORY / "examples/gpu")),
)
def test_gpu_examples_are_accepted(server: Cluster, file: Path) -> None:
    server.kubectl("-n", NAMESPACE, "apply", "--dry-run=server", "-f", str(file))
    # As its page says where NVIDIA's runtime isn't the default.
    edited = file.read_text().replace("# runtimeClassName", "runtimeClassName")
    server.kubectl("-n", NAMESPACE, "apply", "--dry-run=server", "-f", "-", stdin=edited)


def test_reward_and_claims_of_the_gpu_examples_are_accepted(server: Cluster) -> None:
    made = server.kubectl(
        "-n", NAMESPACE, "apply", "--dry-run=server", "-o", "name", "-k", str(REPOSITORY / "examples/gpu/math")
    )
    assert set(made.split()) == {
        "configmap/math-download",
        "configmap/math-rewards",
        "persistentvolumeclaim/data",
        "persistentvolumeclaim/models",
    }


def test_the_pod_that_downloads_is_let_into_a_restricted_namespace(server: Cluster, restricted: str) -> None:
    [download] = parse((REPOSITORY / "examples/gpu/math/download.yaml").read_text())
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "download"}} | download["spec"]["template"]
    server.kubectl("-n", restricted, "create", "--dry-run=server", "-f", "-", stdin=json.dumps(pod))


def test_pods_of_the_gpu_example_are_accepted(server: Cluster, restricted: str) -> None:
    job, runtime = documents.read(REPOSITORY / "examples/gpu/qwen3-8b/rljob.yaml", None)
    assert isinstance(runtime, RLRuntime)
    ref = JobRef(restricted, job.metadata.name, "00000000-0000-0000-0000-000000000000")
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": ref.driver_account}}
    server.kubectl("-n", restricted, "create", "-f", "-", stdin=json.dumps(account))
    for role, place in ((role, places[0]) for role in Role if (places := ROLES[role].places(job.spec))):
        body = build_pod(ref, job.spec, runtime.spec, "revision", role, place, 0, token="token", one_node=False)
        made = json.loads(server.kubectl("create", "--dry-run=server", "-o", "json", "-f", "-", stdin=json.dumps(body)))
        containers = {container["name"]: container for container in made["spec"]["containers"]}
        if role in (Role.ROLLOUT, Role.TRAINER):
            assert list(containers) == [role]
            devices = job.spec.trainer.devices_per_pod if role is Role.TRAINER else 1
            assert containers[role]["resources"]["limits"]["nvidia.com/gpu"] == str(devices)


def _runtime(server: Cluster) -> tuple[str, str]:
    """Returns the uid and image of the chart's template."""
    runtime = json.loads(server.kubectl("get", "crlrt", "cpu", "-o", "json"))
    return runtime["metadata"]["uid"], runtime["spec"]["image"]


def test_runtime_templates_are_upgraded_in_place_and_rolled_back(server: Cluster) -> None:
    def upgrade(*settings: str) -> None:
        installation.install(server.kubeconfig, "longboat-operator:none", "replicas=0", *settings)

    def rollback(*revision: str) -> None:
        installation.helm(
            server.kubeconfig,
            "rollback",
            installation.RELEASE,
            *revision,
            "--namespace",
            installation.NAMESPACE,
            "--wait",
        )

    uid, image = _runtime(server)
    assert image == "longboat-runtime:1"
    try:
        for later in ("longboat-runtime:2", "longboat-runtime:3"):
            upgrade(f"runtimes.cpu.image={later}")
            assert _runtime(server) == (uid, later)
        rollback()
        assert _runtime(server) == (uid, "longboat-runtime:2")
        upgrade()
        assert server.kubectl("get", "crlrt", "-o", "name") == ""
        rollback("1")
        assert _runtime(server)[1] == "longboat-runtime:1"
    finally:
        upgrade("runtimes.cpu.image=longboat-runtime:1")


def test_the_policy_for_drivers_lets_those_operators_write_that_it_lists(server: Cluster, new_job: NewJob) -> None:
    """The account of this chart's own release is one of them."""
    own = ("longboat-operator:none", "replicas=0", "runtimes.cpu.image=longboat-runtime:1")
    settings = ["crds.install=false", "policies.install=false", "replicas=0"]
    where = ["--namespace", "operators", "--create-namespace"]
    words = (word for setting in settings for word in ("--set", setting))
    installation.helm(server.kubeconfig, "install", "second", str(installation.CHART), *where, *words)
    try:
        selected = ["-l", "app.kubernetes.io/instance=second", "-o", "jsonpath={.items[0].metadata.name}"]
        account = server.kubectl("-n", "operators", "get", "serviceaccounts", *selected)
        job = new_job()

        def publish(namespace: str, name: str) -> Any:
            token = server.kubectl("-n", namespace, "create", "token", name).strip()
            operator = Jobs(server, NAMESPACE, token)
            return once_known(lambda: operator.apply_status(job, "longboat-operator", {"phase": "Running"}))

        assert publish(installation.NAMESPACE, installation.RELEASE)["status"] == {"phase": "Running"}
        with pytest.raises(Refused, match="of all ServiceAccounts only the operator's"):
            publish("operators", account)
        installation.install(server.kubeconfig, *own, f"policies.otherOperators={{operators:{account}}}")

        def accepted() -> bool:
            try:
                publish("operators", account)
            except Refused:
                return False
            return True

        eventually(accepted)
    finally:
        installation.install(server.kubeconfig, *own)
        installation.helm(server.kubeconfig, "uninstall", "second", "--namespace", "operators", "--wait")
