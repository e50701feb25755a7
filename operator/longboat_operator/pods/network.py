"""Who may talk to a job's pods, and whom its reward pods may talk to. Pure."""

from __future__ import annotations

from typing import Any

from longboat_crds.base import Role
from longboat_operator.model import Object
from longboat_operator.pods.container import METRICS_PORT
from longboat_operator.pods.names import JobRef


def job_network(job: JobRef) -> Object:
    """Pods of the job reach each other on any port; anyone may scrape metrics."""
    return _policy(
        job,
        job.name,
        {
            "podSelector": job.selector(),
            "policyTypes": ["Ingress"],
            "ingress": [
                {"from": [{"podSelector": job.selector()}]},
                {"ports": [{"port": METRICS_PORT, "protocol": "TCP"}]},
            ],
        },
    )


def reward_network(job: JobRef) -> Object:
    """Graded code is hostile: nothing leaves its pod but to the job and to ask names."""
    return _policy(
        job,
        f"{job.name}-reward",
        {
            "podSelector": job.selector(Role.REWARD),
            "policyTypes": ["Egress"],
            "egress": [
                {"to": [{"podSelector": job.selector()}]},
                {"ports": [{"port": 53, "protocol": "UDP"}, {"port": 53, "protocol": "TCP"}]},
            ],
        },
    )


def _policy(job: JobRef, name: str, spec: dict[str, Any]) -> Object:
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": job.metadata(name),
        "spec": spec,
    }
