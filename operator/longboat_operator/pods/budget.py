"""The budget that protects a job's driver and trainer pods from evictions. Pure."""

from __future__ import annotations

from longboat_operator.model import Object
from longboat_operator.pods.names import JobRef
from longboat_operator.pods.roles import ROLES

# A disruption of any of their pods interrupts the round.
BUDGET_ROLES = tuple(role for role, traits in ROLES.items() if traits.every_pod_needed)


def disruption_budget(job: JobRef, least: int) -> Object:
    """Builds the PodDisruptionBudget that keeps `least` of the job's driver and trainer pods healthy; 0 allows every eviction.

    `minAvailable` is an integer: with a percentage or `maxUnavailable` Kubernetes would read the scale of the owner, the job, which counts
    rollout pods. Pods that aren't ready may always be evicted, or they would hold up a drain for ever.
    """
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": job.metadata(job.name),
        "spec": {
            "minAvailable": least,
            "selector": job.selector(*BUDGET_ROLES),
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
        },
    }
