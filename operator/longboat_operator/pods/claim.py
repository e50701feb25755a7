"""The claims that checkpoints are written to and read from. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from longboat_crds.checkpoint import AccessMode, CheckpointSpec, ReclaimPolicy
from longboat_operator.model import LABEL_JOB_UID, Object
from longboat_operator.pods.names import JobRef

# Only one pod may use such a claim (Kubernetes, access modes of persistent volumes); a job has a driver and trainers.
ONE_POD = "ReadWriteOncePod"


def checkpoint_claim(job: JobRef, checkpoint: CheckpointSpec) -> Object:
    """Outlives the job unless `reclaimPolicy` is Delete: only then does it have an owner reference."""
    volume = checkpoint.volume
    spec: dict[str, Any] = {
        "accessModes": [str(volume.access_mode)],
        "resources": {"requests": {"storage": volume.size}},
    }
    if volume.storage_class_name is not None:
        spec["storageClassName"] = volume.storage_class_name
    return {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": _metadata(job, checkpoint), "spec": spec}


def metadata_patch(job: JobRef, checkpoint: CheckpointSpec, claim: Object) -> dict[str, Any]:
    """Returns what to change in the metadata of the job's claim, as a strategic merge patch; empty when nothing.

    The claim's spec is never touched again: people enlarge it.
    """
    wanted, live = _metadata(job, checkpoint), claim["metadata"]
    patch: dict[str, Any] = {}
    for marks in ("labels", "annotations"):
        current = live.get(marks) or {}
        if missing := {key: value for key, value in wanted[marks].items() if current.get(key) != value}:
            patch[marks] = missing
    owned = any(reference.get("uid") == job.uid for reference in live.get("ownerReferences") or ())
    if "ownerReferences" in wanted and not owned:
        patch["ownerReferences"] = [job.owner]
    elif owned and "ownerReferences" not in wanted:
        patch["ownerReferences"] = [{"$patch": "delete", "uid": job.uid}]
    return patch


def brought_claims(checkpoint: CheckpointSpec) -> Iterator[tuple[str, str]]:
    """Yields the field and name of every claim that the user brings."""
    if checkpoint.claim_name is not None:
        yield "spec.checkpoint.claimName", checkpoint.claim_name
    if checkpoint.resume_from is not None:
        yield "spec.checkpoint.resumeFrom.claimName", checkpoint.resume_from.claim_name


def access_modes(claim: Object) -> list[str]:
    """Lists the access modes of the volume if there is one, else those asked for."""
    modes = claim.get("status", {}).get("accessModes") or claim.get("spec", {}).get("accessModes") or ()
    return [str(mode) for mode in modes]


def on_one_node(modes: list[str], *, read_only: bool = False) -> bool:
    """Whether all pods that mount a claim of these access modes must share a node."""
    many = {AccessMode.READ_WRITE_MANY.value} | ({"ReadOnlyMany"} if read_only else set())
    return not many & set(modes)


def _metadata(job: JobRef, checkpoint: CheckpointSpec) -> dict[str, Any]:
    metadata = job.metadata(job.checkpoint_claim, owned=checkpoint.reclaim_policy is ReclaimPolicy.DELETE)
    metadata["labels"][LABEL_JOB_UID] = job.uid
    return metadata | {"annotations": dict(job.common_annotations) | {LABEL_JOB_UID: job.uid}}
