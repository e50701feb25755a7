"""The headless Service that gives the Ray head a name. Pure."""

from __future__ import annotations

from longboat_crds.base import Role
from longboat_operator.model import LABEL_JOB, LABEL_ROLE, Object
from longboat_operator.pods.container import RAY_PORT
from longboat_operator.pods.names import JobRef


def head_service(job: JobRef) -> Object:
    """Publishes the address before the head is ready: its own readiness needs the name."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": job.metadata(job.head),
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": {LABEL_JOB: job.name, LABEL_ROLE: str(Role.DRIVER)},
            "ports": [{"name": "ray", "port": RAY_PORT, "targetPort": RAY_PORT, "protocol": "TCP"}],
        },
    }
