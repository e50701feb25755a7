"""The ControllerRevision that keeps the runtime template a job started with. Pure."""

from __future__ import annotations

from longboat_crds.runtime import RLRuntimeSpec
from longboat_operator.model import Object
from longboat_operator.pods.names import JobRef


def runtime_revision(job: JobRef, number: int, runtime: RLRuntimeSpec) -> Object:
    """Immutable by Kubernetes; `data` is the template's spec."""
    return {
        "apiVersion": "apps/v1",
        "kind": "ControllerRevision",
        "metadata": job.metadata(job.revision(number)),
        "data": runtime.to_json(),
        "revision": number,
    }
