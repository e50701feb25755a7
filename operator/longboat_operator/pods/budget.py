"""The budget that keeps evictions from a job's driver and trainer pods. Pure."""

from __future__ import annotations

from longboat_operator.model import Object
from longboat_operator.pods.names import JobRef
from longboat_operator.pods.roles import ROLES

# One disruption of any of their pods interrupts the round.
BUDGET_ROLES = tuple(role for role, traits in ROLES.items() if traits.every_pod_needed)


def disruption_budget(job: JobRef, least: int) -> Object:
    """Builds the PodDisruptionBudget by which so many of the job's driver and trainer pods stay healthy; 0 allows every eviction.

    `minAvailable` is an integer: for a percentage or `maxUnavailable` Kubernetes would ask the owner, the job, for its scale, which counts
    rollout pods. Pods that aren't ready may always be evicted: they would otherwise hold up a drain for ever.
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
