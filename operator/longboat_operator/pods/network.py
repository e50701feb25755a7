"""The name of the Ray head, who may talk to a job's pods, and whom its reward and environment pods may talk to. Pure."""

from __future__ import annotations

import ipaddress
import json
from enum import StrEnum
from typing import Annotated, Any, Self

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from longboat_crds.base import ApiModel, Role
from longboat_crds.load import ApiError, checked
from longboat_operator.model import LABEL_JOB, LABEL_ROLE, Object
from longboat_operator.pods.container import METRICS_PORT, RAY_MANAGER_PORTS, RAY_PORT, RAY_WORKER_PORTS
from longboat_operator.pods.names import JobRef

_DNS_PORTS = ({"port": 53, "protocol": "UDP"}, {"port": 53, "protocol": "TCP"})
_RAY_PORTS = (
    *({"port": port, "protocol": "TCP"} for port in (RAY_PORT, *RAY_MANAGER_PORTS)),
    {"port": RAY_WORKER_PORTS[0], "endPort": RAY_WORKER_PORTS[1], "protocol": "TCP"},
)
_LABEL_NAME = "[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"

LabelKey = Annotated[str, Field(pattern=rf"^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?{_LABEL_NAME}$", max_length=317)]
LabelValue = Annotated[str, Field(pattern=rf"^({_LABEL_NAME})?$")]


class SelectorOperator(StrEnum):
    """Says how a label is compared."""

    IN = "In"
    NOT_IN = "NotIn"
    EXISTS = "Exists"
    DOES_NOT_EXIST = "DoesNotExist"


class LabelSelectorRequirement(ApiModel):
    """Kubernetes' own."""

    key: LabelKey
    operator: SelectorOperator
    values: list[LabelValue] | None = None

    @model_validator(mode="after")
    def _values_where_they_count(self) -> Self:
        compared = self.operator in {SelectorOperator.IN, SelectorOperator.NOT_IN}
        if compared and not self.values:
            raise _broken("values", f"operator {self.operator} needs at least one value")
        if not compared and self.values:
            raise _broken("values", f"operator {self.operator} takes no values: leave them out")
        return self


class LabelSelector(ApiModel):
    """Kubernetes' own; an empty one selects everything."""

    match_labels: dict[LabelKey, LabelValue] | None = None
    match_expressions: list[LabelSelectorRequirement] | None = None


class IpBlock(ApiModel):
    """A range of addresses, with exceptions."""

    cidr: str
    excepted: list[str] | None = Field(None, alias="except")

    @model_validator(mode="after")
    def _are_networks(self) -> Self:
        whole = _network("cidr", self.cidr)
        for position, text in enumerate(self.excepted or ()):
            field = f"except[{position}]"
            part = _network(field, text)
            if part.prefixlen < whole.prefixlen or part.network_address not in whole:
                raise _broken(field, f"{text} is not within {self.cidr}")
        return self


class NetworkPolicyPeer(ApiModel):
    """Kubernetes' own: addresses, or pods. Without a namespaceSelector pods of the job's own namespace."""

    ip_block: IpBlock | None = None
    namespace_selector: LabelSelector | None = None
    pod_selector: LabelSelector | None = None

    @model_validator(mode="after")
    def _is_one_kind(self) -> Self:
        selects = self.namespace_selector is not None or self.pod_selector is not None
        if self.ip_block is None and not selects:
            raise _broken("namespaceSelector", "is required, unless podSelector or ipBlock is given")
        if self.ip_block is not None and selects:
            raise _broken("ipBlock", "can't be combined with a selector: give two peers")
        return self


class DnsPeers(ApiModel):
    """Lists who answers DNS."""

    dns_peers: list[NetworkPolicyPeer]

    @model_validator(mode="after")
    def _not_empty(self) -> Self:
        if not self.dns_peers:
            # To Kubernetes no peers means all peers.
            message = 'name at least one peer; {"ipBlock": {"cidr": "0.0.0.0/0"}} is any IPv4 address'
            raise _broken("dnsPeers", message)
        return self


def read_dns_peers(text: str) -> tuple[Object, ...]:
    """Reads a JSON list of NetworkPolicyPeers. Raises ApiError if it isn't one, or is empty."""
    try:
        value = json.loads(text)
    except ValueError as error:
        raise ApiError([f"dnsPeers: not valid JSON: {error}"]) from error
    return tuple(peer.to_json() for peer in checked(DnsPeers, {"dnsPeers": value}).dns_peers)


def head_service(job: JobRef) -> Object:
    """Builds the headless Service that names the Ray head. It publishes the address even while the driver's pod isn't ready.

    It spells out the server's defaults, so that the server stores exactly what is applied.
    """
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": job.metadata(job.head),
        "spec": {
            "type": "ClusterIP",
            "clusterIP": "None",
            "internalTrafficPolicy": "Cluster",
            "sessionAffinity": "None",
            "publishNotReadyAddresses": True,
            "selector": {LABEL_JOB: job.name, LABEL_ROLE: str(Role.DRIVER)},
            "ports": [{"name": "ray", "port": RAY_PORT, "targetPort": RAY_PORT, "protocol": "TCP"}],
        },
    }


def job_network(job: JobRef) -> Object:
    """Builds the policy by which the job's pods reach each other on any port, and anyone reaches the port for metrics."""
    return _policy(
        job,
        job.network,
        {
            "podSelector": job.selector(),
            "policyTypes": ["Ingress"],
            "ingress": [
                {"from": [{"podSelector": job.selector()}]},
                {"ports": [{"port": METRICS_PORT, "protocol": "TCP"}]},
            ],
        },
    )


def reward_network(job: JobRef, dns_peers: tuple[Object, ...]) -> Object:
    """Builds the policy of reward pods: graded code is hostile, so they may connect only to the job's pods, and to `dns_peers` for DNS."""
    return _policy(
        job,
        job.reward_network,
        {
            "podSelector": job.selector(Role.REWARD),
            "policyTypes": ["Egress"],
            "egress": [
                {"to": [{"podSelector": job.selector()}]},
                {"to": [*dns_peers], "ports": [*_DNS_PORTS]},
            ],
        },
    )


def environment_network(job: JobRef, dns_peers: tuple[Object, ...]) -> Object:
    """Builds the policy of environment pods: they may connect only to Ray on the driver and rollout pods, and to `dns_peers` for DNS."""
    return _policy(
        job,
        job.environment_network,
        {
            "podSelector": job.selector(Role.ENVIRONMENT),
            "policyTypes": ["Egress"],
            "egress": [
                {"to": [{"podSelector": job.selector(Role.DRIVER, Role.ROLLOUT)}], "ports": [*_RAY_PORTS]},
                {"to": [*dns_peers], "ports": [*_DNS_PORTS]},
            ],
        },
    )


def _network(field: str, text: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network:
    try:
        return ipaddress.ip_network(text, strict=False)
    except ValueError as error:
        raise _broken(field, f"must be a network such as 169.254.20.10/32 or fd00::a/128, not {text!r}") from error


def _broken(field: str, message: str) -> PydanticCustomError:
    return PydanticCustomError("rule", "{message}", {"message": message, "field": field})


def _policy(job: JobRef, name: str, spec: dict[str, Any]) -> Object:
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": job.metadata(name),
        "spec": spec,
    }
