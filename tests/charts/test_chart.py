"""The chart renders what a careful platform team would accept, and refuses values it doesn't know."""

import json
from typing import Any

import pytest
import yaml

from longboat_crds.policies import DRIVER_STATUS, OPERATOR_DELETES
from longboat_crds.runtime import RLRuntimeSpec
from longboat_operator.cli import _parser
from longboat_operator.kube.resources import (
    CHILDREN,
    CLUSTER_RL_RUNTIME,
    CORDONED_NODE,
    EVENT,
    LEASE,
    NETWORK_POLICY,
    POD,
    RL_JOB,
    RL_RUNTIME,
    SECRET,
    Resource,
)
from longboat_operator.model import DNS_PEERS
from longboat_operator.pods.access import driver_role
from longboat_operator.pods.names import JobRef
from tests.charts.rendering import CHART, NAMESPACE, RELEASE, Rendered, helm, refusal, render

pytestmark = pytest.mark.helm

NAME = f"{RELEASE}-longboat"
READS = {"get", "list", "watch"}
MODES: list[dict[str, Any]] = [{}, {"watchNamespaces": ["team-a", "team-b"]}]


@pytest.fixture
def default() -> Rendered:
    return render()


def test_lint() -> None:
    done = helm("lint", "--strict", str(CHART))
    assert done.returncode == 0, done.stdout


def test_the_operator_meets_restricted_pod_security(default: Rendered) -> None:
    pod = default.one("Deployment")["spec"]["template"]["spec"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["runAsUser"] == 10001
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert not {"hostNetwork", "hostPID", "hostIPC"} & set(pod)
    assert all(set(volume) <= {"name", "emptyDir"} for volume in pod["volumes"])
    for container in pod["containers"]:
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert container["resources"]["limits"]["memory"]


def test_a_runtime_template_in_the_values_may_have_every_field() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    fields = {field.alias for field in RLRuntimeSpec.model_fields.values()}
    assert schema["properties"]["runtimes"]["additionalProperties"]["properties"].keys() == fields


def test_probes_and_ports_are_those_that_the_operator_serves(default: Rendered) -> None:
    [container] = default.one("Deployment")["spec"]["template"]["spec"]["containers"]
    options = _parser().parse_args(container["args"])
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert ports == {"metrics": options.metrics_port, "health": options.health_port}
    assert container["livenessProbe"]["httpGet"] == {"path": "/healthz", "port": "health"}
    assert container["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": "health"}


@pytest.mark.parametrize("mode", MODES, ids=["cluster", "namespaces"])
def test_the_operators_command_line_takes_the_arguments(mode: dict[str, Any]) -> None:
    rendered = render(mode)
    [container] = rendered.one("Deployment")["spec"]["template"]["spec"]["containers"]
    options = _parser().parse_args(container["args"])
    assert options.namespace == mode.get("watchNamespaces", [])
    assert options.leader_election
    [lease_rules] = [rules for rules in _rules(rendered, f"{NAME}-lease") if "resourceNames" in rules]
    assert lease_rules["resourceNames"] == [options.lease_name]


@pytest.mark.parametrize(
    "peers",
    [
        None,
        [
            {"ipBlock": {"cidr": "169.254.20.10/32"}},
            {"namespaceSelector": {}, "podSelector": {"matchLabels": {"a": "b"}}},
        ],
    ],
    ids=["default", "given"],
)
@pytest.mark.parametrize("values", [{}, {"dnsPeers": None}], ids=["its values", "an older chart's"])
def test_the_operator_is_told_who_answers_dns(peers: list[dict[str, Any]] | None, values: dict[str, Any]) -> None:
    rendered = render({"dnsPeers": peers} if peers else values)
    [container] = rendered.one("Deployment")["spec"]["template"]["spec"]["containers"]
    told = _parser().parse_args(container["args"]).dns_peers
    assert list(told) == (peers or list(DNS_PEERS))
    egress = rendered.one("NetworkPolicy")["spec"]["egress"]
    assert [rule["to"] for rule in egress if rule["ports"][0]["port"] == 53] == [list(told)]


@pytest.mark.parametrize(
    ("values", "in_flight", "timeout"),
    [
        ({}, 32, 10.0),
        ({"requests": None, "workers": 4}, 32, 10.0),
        ({"requests": {"inFlight": 7, "timeoutSeconds": None}}, 7, 10.0),
        ({"requests": {"timeoutSeconds": 30}}, 32, 30.0),
    ],
    ids=["its values", "an older chart's", "in flight", "time-out"],
)
def test_the_operator_is_told_the_bounds_of_its_requests(
    values: dict[str, Any], in_flight: int, timeout: float
) -> None:
    [container] = render(values).one("Deployment")["spec"]["template"]["spec"]["containers"]
    told = _parser().parse_args(container["args"])
    assert (told.requests_in_flight, told.request_timeout) == (in_flight, timeout)


def _rules(rendered: Rendered, name: str = NAME) -> list[dict[str, Any]]:
    roles = [*rendered.of_kind("ClusterRole"), *rendered.of_kind("Role")]
    return next(role["rules"] for role in roles if role["metadata"]["name"] == name)


def _verbs(rules: list[dict[str, Any]], resource: Resource, subresource: str = "") -> set[str]:
    name = f"{resource.plural}/{subresource}" if subresource else resource.plural
    return {
        verb
        for rule in rules
        for verb in rule["verbs"]
        if resource.group in rule["apiGroups"] and name in rule["resources"]
    }


@pytest.mark.parametrize("mode", MODES, ids=["cluster", "namespaces"])
def test_the_operator_has_the_rights_that_it_uses(mode: dict[str, Any]) -> None:
    rendered = render(mode)
    rules = _rules(rendered)
    for resource in CHILDREN:
        writes = {"create", "delete"} if resource is POD else {"create", "patch"}
        deletes = {"delete"} if resource is NETWORK_POLICY else set()
        assert _verbs(rules, resource) == READS | writes | deletes
    assert _verbs(rules, SECRET) == {"create", "delete"}
    assert _verbs(rules, POD, "resize") == {"patch"}
    assert _verbs(rules, RL_JOB) == READS | {"delete"}
    assert _verbs(rules, RL_JOB, "status") == {"patch"}
    assert _verbs(rules, RL_RUNTIME) == READS
    assert _verbs(rules, CLUSTER_RL_RUNTIME) == (set() if mode else READS)
    assert _verbs(rules, CORDONED_NODE) == (set() if mode else {"list", "watch"}), "a Role gives no right to nodes"
    assert _verbs(rules, EVENT) == {
        "get",
        "list",
        "create",
        "patch",
    }  # why a pod can't be mounted stands in Events alone
    assert _verbs(_rules(rendered, f"{NAME}-lease"), LEASE) == {"get", "create", "update"}


def test_the_operator_holds_what_it_gives_to_drivers(default: Rendered) -> None:
    """Else the API server would refuse the Roles it makes."""
    for granted in driver_role(JobRef("ns", "job", "uid"))["rules"]:
        for name in granted["resources"]:
            plural, _, subresource = name.partition("/")
            held = _verbs(_rules(default), Resource("", plural, granted["apiGroups"][0]), subresource)
            assert set(granted["verbs"]) <= held


def test_no_right_is_without_bounds(default: Rendered) -> None:
    for role in [*default.of_kind("ClusterRole"), *default.of_kind("Role")]:
        for rule in role["rules"]:
            assert "*" not in [*rule["apiGroups"], *rule["resources"], *rule["verbs"]]
            assert not {"escalate", "bind", "impersonate"} & set(rule["verbs"])


def test_a_namespaced_release_has_roles_only_where_it_serves() -> None:
    rendered = render(MODES[1] | {"crds": {"install": False}, "policies": {"install": False}})
    assert rendered.of_kind("ClusterRole") == []
    assert rendered.of_kind("ClusterRoleBinding") == []
    bound = [
        (binding["metadata"]["namespace"], binding["roleRef"]["name"], binding["subjects"])
        for binding in rendered.of_kind("RoleBinding")
    ]
    account = [{"kind": "ServiceAccount", "name": NAME, "namespace": NAMESPACE}]
    assert bound == [("team-a", NAME, account), ("team-b", NAME, account), (NAMESPACE, f"{NAME}-lease", account)]


def test_the_definitions_are_those_of_the_tree(default: Rendered) -> None:
    files = sorted((CHART.parents[1] / "crds").glob("*.yaml"))
    assert len(files) == 3
    for file in files:
        definition = yaml.safe_load(file.read_text())
        rendered = default.one("CustomResourceDefinition", definition["metadata"]["name"])
        assert rendered["spec"] == definition["spec"]
        assert rendered["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}


def test_definitions_and_policies_can_be_left_out() -> None:
    rendered = render({"crds": {"install": False}, "policies": {"install": False}})
    assert rendered.of_kind("CustomResourceDefinition") == []
    assert rendered.of_kind("ValidatingAdmissionPolicy") == []
    assert rendered.of_kind("ValidatingAdmissionPolicyBinding") == []
    kept = render({"crds": {"keep": False}}).of_kind("CustomResourceDefinition")
    assert [body for body in kept if "annotations" in body["metadata"]] == []


def test_several_replicas_get_a_disruption_budget() -> None:
    assert render().of_kind("PodDisruptionBudget") == []
    rendered = render({"replicas": 2})
    budget, deployment = rendered.one("PodDisruptionBudget")["spec"], rendered.one("Deployment")["spec"]
    assert budget["minAvailable"] == 1
    assert budget["selector"] == deployment["selector"]


def test_selectors_select_the_operators_pods_only(default: Rendered) -> None:
    deployment = default.one("Deployment")["spec"]
    labels = deployment["template"]["metadata"]["labels"]
    selectors = [
        deployment["selector"]["matchLabels"],
        default.one("Service")["spec"]["selector"],
        default.one("NetworkPolicy")["spec"]["podSelector"]["matchLabels"],
    ]
    for selector in selectors:
        assert selector.items() <= labels.items()
        assert selector["app.kubernetes.io/component"] == "operator"


def test_the_service_monitor_finds_the_metrics() -> None:
    monitor = {"metrics": {"serviceMonitor": {"enabled": True}}}
    rendered = render(monitor)
    selector = rendered.one("ServiceMonitor")["spec"]["selector"]["matchLabels"]
    service = rendered.one("Service")
    assert selector.items() <= service["metadata"]["labels"].items()
    assert rendered.one("ServiceMonitor")["spec"]["endpoints"][0]["port"] == service["spec"]["ports"][0]["name"]
    alone = {"metrics": {"service": False, **monitor["metrics"]}}
    assert "needs metrics.service: true" in refusal(alone)


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        (MODES[0], [("ClusterRLRuntime", None)]),
        (MODES[1], [("RLRuntime", "team-a"), ("RLRuntime", "team-b")]),
    ],
    ids=["cluster", "namespaces"],
)
def test_runtime_templates(mode: dict[str, Any], expected: list[tuple[str, str | None]]) -> None:
    rendered = render({**mode, "runtimes": {"cpu": {"image": "longboat-runtime:1", "command": ["/bin/longboat"]}}})
    runtimes = [body for body in rendered.objects if body["kind"].endswith("RLRuntime")]
    assert [(body["kind"], body["metadata"].get("namespace")) for body in runtimes] == expected
    assert all(body["spec"] == {"image": "longboat-runtime:1", "command": ["/bin/longboat"]} for body in runtimes)


def test_runtime_templates_are_plain_objects_where_their_kind_is_known() -> None:
    values = {"runtimes": {"cpu": {"image": "longboat-runtime:1"}}}
    first = render(values).one("ClusterRLRuntime")["metadata"]
    assert "post-install" in first["annotations"]["helm.sh/hook"]
    # What Helm looks at before it takes an object into a release.
    assert first["annotations"]["meta.helm.sh/release-name"] == RELEASE
    assert first["annotations"]["meta.helm.sh/release-namespace"] == NAMESPACE
    assert first["labels"]["app.kubernetes.io/managed-by"] == "Helm"
    later = render(values, known=("ClusterRLRuntime",)).one("ClusterRLRuntime")["metadata"]
    assert "annotations" not in later
    namespaced = render({**values, "watchNamespaces": ["team-a"]}, known=("RLRuntime",)).one("RLRuntime")
    assert "annotations" not in namespaced["metadata"]


def test_policies_know_every_operator_by_its_account() -> None:
    values = {"serviceAccount": {"name": "own"}, "policies": {"otherOperators": ["team-a:longboat", "team-b:x.y"]}}
    expected = f"['system:serviceaccount:{NAMESPACE}:own', 'system:serviceaccount:team-a:longboat', 'system:serviceaccount:team-b:x.y']"
    for name, condition in (
        (
            DRIVER_STATUS,
            f"request.userInfo.username.startsWith('system:serviceaccount:') && !(request.userInfo.username in {expected})",
        ),
        (OPERATOR_DELETES, f"request.userInfo.username in {expected}"),
    ):
        policy = render(values).one("ValidatingAdmissionPolicy", name)
        assert policy["spec"]["matchConditions"] == [{"name": "subject", "expression": condition}]
    account = render().one("ServiceAccount")["metadata"]["name"]
    assert f"['system:serviceaccount:{NAMESPACE}:{account}']" in str(
        render().one("ValidatingAdmissionPolicy", DRIVER_STATUS)
    )


@pytest.mark.parametrize("mode", MODES, ids=["cluster", "namespaces"])
def test_nothing_may_be_deleted_without_the_policy_that_limits_it(mode: dict[str, Any]) -> None:
    """The operator is told, since it would otherwise ask again and again."""
    [container] = render(mode).one("Deployment")["spec"]["template"]["spec"]["containers"]
    assert _parser().parse_args(container["args"]).may_delete
    without = render({**mode, "policies": {"install": False}})
    [container] = without.one("Deployment")["spec"]["template"]["spec"]["containers"]
    assert not _parser().parse_args(container["args"]).may_delete
    assert _verbs(_rules(without), SECRET) == {"create"}
    assert "delete" not in _verbs(_rules(without), NETWORK_POLICY)


def test_every_authenticated_user_may_read_cluster_runtimes(default: Rendered) -> None:
    binding = default.one("ClusterRoleBinding", "longboat-read-cluster-runtimes")
    assert [subject["name"] for subject in binding["subjects"]] == ["system:authenticated"]
    rules = _rules(default, binding["roleRef"]["name"])
    assert rules == [{"apiGroups": ["longboat.dev"], "resources": ["clusterrlruntimes"], "verbs": sorted(READS)}]
    older = render({"clusterRuntimes": None})
    assert older.one("ClusterRoleBinding", "longboat-read-cluster-runtimes")
    for values in ({"clusterRuntimes": {"readable": False}}, {"crds": {"install": False}}):
        names = {body["metadata"]["name"] for body in render(values).of_kind("ClusterRoleBinding")}
        assert "longboat-read-cluster-runtimes" not in names


def test_roles_of_users_outlive_the_release_as_the_definitions_do(default: Rendered) -> None:
    def kept(rendered: Rendered) -> set[str]:
        roles = [*rendered.of_kind("ClusterRole"), *rendered.of_kind("ClusterRoleBinding")]
        return {body["metadata"]["name"] for body in roles if "annotations" in body["metadata"]}

    assert kept(default) == {"longboat-view", "longboat-edit", "longboat-admin", "longboat-read-cluster-runtimes"}
    assert kept(render({"crds": {"keep": False}})) == set()


def test_a_platform_that_gives_users_can_have_them_unset() -> None:
    unset = {"podSecurityContext": {"runAsUser": None, "runAsGroup": None, "fsGroup": None}}
    pod = render(unset).one("Deployment")["spec"]["template"]["spec"]
    assert pod["securityContext"] == {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
    more = {"securityContext": {"privileged": False}}
    [container] = render(more).one("Deployment")["spec"]["template"]["spec"]["containers"]
    assert container["securityContext"]["privileged"] is False
    assert container["securityContext"]["readOnlyRootFilesystem"] is True


def test_an_older_charts_values_have_the_same_security(default: Rendered) -> None:
    older = render({"podSecurityContext": None, "securityContext": None})
    assert older.one("Deployment")["spec"] == default.one("Deployment")["spec"]


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"replicaCount": 2}, "replicaCount"),
        ({"replicas": "2"}, "/replicas"),
        ({"image": {"repo": "x"}}, "repo"),
        ({"watchNamespaces": ["Team_A"]}, "/watchNamespaces/0"),
        ({"runtimes": {"cpu": {}}}, "image"),
        ({"dnsPeers": []}, "/dnsPeers"),
        ({"dnsPeers": [{}]}, "/dnsPeers/0"),
        ({"dnsPeers": [{"ipBlock": {"cidr": "somewhere"}}]}, "/dnsPeers/0"),
        ({"policies": {"otherOperators": ["longboat"]}}, "/policies/otherOperators/0"),
        ({"clusterRuntimes": {"readable": "yes"}}, "/clusterRuntimes/readable"),
        ({"podSecurityContext": []}, "/podSecurityContext"),
        ({"securityContext": "none"}, "/securityContext"),
        ({"runtimes": {"cpu": {"image": "x", "userIds": "Mine"}}}, "/runtimes/cpu/userIds"),
    ],
)
def test_values_it_does_not_know_are_refused(values: dict[str, Any], words: str) -> None:
    assert words in refusal(values)


def test_the_readme_lists_every_value() -> None:
    text = (CHART / "README.md").read_text()
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    assert [name for name in values if f"`{name}" not in text] == []
