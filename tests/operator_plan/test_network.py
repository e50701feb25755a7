"""Whom graded code may reach."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest

from longboat_crds.load import ApiError
from longboat_operator.model import DNS_PEERS, ApplyObject, Object
from longboat_operator.planner import plan
from longboat_operator.pods.container import AGENT_PORT, HEAD_AGENT_PORT, METRICS_PORT
from longboat_operator.pods.network import read_dns_peers
from longboat_runtime.agent.ray_command import RayPorts
from tests.operator_plan.simulated_cluster import SimulatedCluster, with_environments

NODE_LOCAL = {"ipBlock": {"cidr": "169.254.20.10/32"}}


def test_reward_pods_reach_their_job_and_those_who_answer_dns() -> None:
    cluster = SimulatedCluster()
    [policy] = reward_policies(cluster, DNS_PEERS)
    inside, dns = policy["spec"]["egress"]
    assert inside == {"to": [{"podSelector": {"matchLabels": {"longboat.dev/job": "sums"}}}]}
    assert dns["to"] == [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "kube-system"}}}]
    assert {(port["protocol"], port["port"]) for port in dns["ports"]} == {("UDP", 53), ("TCP", 53)}


def test_environment_pods_reach_ray_on_the_head_and_rollout_pods_and_those_who_answer_dns() -> None:
    cluster = SimulatedCluster(with_environments())
    cluster.up()
    policy = cluster.children["NetworkPolicy"]["sums-environment"]["spec"]
    [selected] = policy["podSelector"]["matchExpressions"]
    assert (selected["key"], selected["values"]) == ("longboat.dev/role", ["environment"])
    ray, dns = policy["egress"]
    [peer] = ray["to"]
    assert peer["podSelector"]["matchLabels"] == {"longboat.dev/job": "sums"}
    assert peer["podSelector"]["matchExpressions"][0]["values"] == ["driver", "rollout"]
    opened = {port for each in ray["ports"] for port in range(each["port"], each.get("endPort", each["port"]) + 1)}
    ports = RayPorts()
    assert {ports.head, ports.node_manager, ports.object_manager, 10002, 19999} <= opened
    assert not {80, 443, METRICS_PORT, AGENT_PORT, HEAD_AGENT_PORT} & opened
    assert {(port["protocol"], port["port"]) for port in dns["ports"]} == {("UDP", 53), ("TCP", 53)}


def test_a_job_without_environments_has_no_policy_for_them() -> None:
    cluster = SimulatedCluster()
    cluster.up()
    assert set(cluster.children["NetworkPolicy"]) == {"sums-job", "sums-reward"}


def test_a_running_jobs_policy_follows_the_operators_option() -> None:
    cluster = SimulatedCluster()
    cluster.up()
    assert reward_policies(cluster, DNS_PEERS) == []
    [policy] = reward_policies(cluster, (NODE_LOCAL,))
    assert policy["spec"]["egress"][1]["to"] == [NODE_LOCAL]


def reward_policies(cluster: SimulatedCluster, dns_peers: tuple[Object, ...]) -> list[Object]:
    """Those that a plan would apply now."""
    observed, _ = cluster.planned()
    actions = plan(dataclasses.replace(observed, dns_peers=dns_peers), cluster.now).actions
    bodies = [action.body for action in actions if isinstance(action, ApplyObject)]
    return [body for body in bodies if body["metadata"]["name"] == "sums-reward" and body["kind"] == "NetworkPolicy"]


def test_peers_are_taken_as_they_are_given() -> None:
    peers = [
        NODE_LOCAL,
        {"ipBlock": {"cidr": "10.0.0.0/8", "except": ["10.1.0.0/16"]}},
        {"namespaceSelector": {}, "podSelector": {"matchLabels": {"k8s-app": "kube-dns"}}},
        {"podSelector": {"matchExpressions": [{"key": "a.b/c", "operator": "Exists"}]}},
    ]
    assert read_dns_peers(json.dumps(peers)) == tuple(peers)


@pytest.mark.parametrize(
    ("peers", "problem"),
    [
        ([], "dnsPeers: name at least one peer"),
        ([{}], "dnsPeers[0].namespaceSelector: is required, unless podSelector or ipBlock is given"),
        ([NODE_LOCAL, {"ipBlok": {}}], "dnsPeers[1].ipBlok: no such field; did you mean ipBlock?"),
        ([NODE_LOCAL | {"podSelector": {}}], "dnsPeers[0].ipBlock: can't be combined with a selector: give two peers"),
        ([{"ipBlock": {"cidr": "10.0.0.1000/8"}}], "dnsPeers[0].ipBlock.cidr: must be a network such as"),
        (
            [{"ipBlock": {"cidr": "10.0.0.0/8", "except": ["11.0.0.0/16"]}}],
            "dnsPeers[0].ipBlock.except[0]: 11.0.0.0/16 is not within 10.0.0.0/8",
        ),
        (
            [{"ipBlock": {"cidr": "10.0.0.0/8", "except": ["::/0"]}}],
            "dnsPeers[0].ipBlock.except[0]: ::/0 is not within",
        ),
        ([{"podSelector": {"matchLabels": {"a": "b c"}}}], "dnsPeers[0].podSelector.matchLabels.a: must match"),
        (
            [{"podSelector": {"matchExpressions": [{"key": "a", "operator": "In"}]}}],
            "dnsPeers[0].podSelector.matchExpressions[0].values: operator In needs at least one value",
        ),
        (
            [{"podSelector": {"matchExpressions": [{"key": "a", "operator": "Exists", "values": ["b"]}]}}],
            "dnsPeers[0].podSelector.matchExpressions[0].values: operator Exists takes no values",
        ),
    ],
)
def test_what_is_no_peer_is_refused_with_its_field(peers: list[Any], problem: str) -> None:
    with pytest.raises(ApiError) as caught:
        read_dns_peers(json.dumps(peers))
    assert caught.value.problems[0].startswith(problem)


def test_what_is_no_json_is_refused() -> None:
    with pytest.raises(ApiError, match="dnsPeers: not valid JSON"):
        read_dns_peers("[{")
