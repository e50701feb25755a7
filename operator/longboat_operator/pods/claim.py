"""The claim that checkpoints are written to. Pure."""

from __future__ import annotations

from typing import Any

from longboat_crds.checkpoint import AccessMode, CheckpointSpec, ReclaimPolicy
from longboat_operator.model import Object
from longboat_operator.pods.names import JobRef


def checkpoint_claim(job: JobRef, checkpoint: CheckpointSpec) -> Object:
    """Outlives the job unless `reclaimPolicy` is Delete: only then has it an owner reference."""
    volume = checkpoint.volume
    spec: dict[str, Any] = {
        "accessModes": [str(volume.access_mode)],
        "resources": {"requests": {"storage": volume.size}},
    }
    if volume.storage_class_name is not None:
        spec["storageClassName"] = volume.storage_class_name
    owned = checkpoint.reclaim_policy is ReclaimPolicy.DELETE
    metadata = job.metadata(job.checkpoint_claim, owned=owned)
    return {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata, "spec": spec}


def pins_to_one_node(checkpoint: CheckpointSpec, claim: Object | None) -> bool:
    """Whether all pods that mount the claim must share a node.

    `claim` is what is known of the claim in use; without it the spec's access mode counts.
    """
    modes = (claim or {}).get("spec", {}).get("accessModes") or [str(checkpoint.volume.access_mode)]
    return AccessMode.READ_WRITE_MANY not in modes
