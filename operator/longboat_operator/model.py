"""What passes between watch, plan and apply: a frozen snapshot in, a plan as data out. Pure.

Kubernetes objects are plain dicts as the API server gives them (children trimmed to what plans read).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

Object = Mapping[str, Any]

FIELD_MANAGER = "longboat-operator"
LABEL_JOB = "longboat.dev/job"
LABEL_ROLE = "longboat.dev/role"
LABEL_INDEX = "longboat.dev/index"
LABEL_ATTEMPT = "longboat.dev/attempt"
LABEL_JOB_UID = "longboat.dev/job-uid"
ANNOTATION_HASH = "longboat.dev/applied-hash"
ANNOTATION_REVISION = "longboat.dev/revision"


# Who answers DNS unless the operator is told otherwise: NetworkPolicyPeers.
DNS_PEERS: tuple[Object, ...] = (
    {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "kube-system"}}},
)


def digest(body: Object) -> str:
    """16 hexadecimal digits that name a JSON value; equal values have equal digests."""
    text = json.dumps(body, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def belongs_to(obj: Object, uid: str) -> bool:
    """Whether a child is of the job with this uid: by an owner reference or, for a claim that outlives it, by label."""
    metadata = obj.get("metadata", {})
    if any(reference.get("uid") == uid for reference in metadata.get("ownerReferences") or ()):
        return True
    return (metadata.get("labels") or {}).get(LABEL_JOB_UID) == uid


@dataclass(frozen=True, slots=True)
class JobKey:
    """Names one RLJob; the key that plans are made for."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class Observed:
    """Everything a job's plan may read. `job` is None when it is gone.

    `children` maps kind (`Pod`, `Service`, `ServiceAccount`, `Role`, `RoleBinding`, `Secret`, `NetworkPolicy`,
    `PersistentVolumeClaim`, `ControllerRevision`) to objects by name, only those that are the job's (claims also by
    name). `runtime` is the live runtime template; the one the job started with is the newest ControllerRevision.
    `refusals` are the API server's answers to the last plan's writes, by object name. `sees_cluster_runtimes` is False
    for an operator that is installed for single namespaces. `dns_peers` is an option of the operator.
    """

    key: JobKey
    job: Object | None
    children: Mapping[str, Mapping[str, Object]] = field(default_factory=dict)
    runtime: Object | None = None
    refusals: Mapping[str, str] = field(default_factory=dict)
    sees_cluster_runtimes: bool = True
    dns_peers: tuple[Object, ...] = DNS_PEERS


@dataclass(frozen=True, slots=True)
class CreateObject:
    """POST; "already exists" is success only if the existing object is the job's. `dry_run` first where asked.

    `random_key` names a key of `stringData` that apply fills with 64 random hexadecimal digits.
    """

    body: Object
    dry_run: bool = False
    random_key: str | None = None


@dataclass(frozen=True, slots=True)
class ApplyObject:
    """Server-side apply with our field manager, forced; skipped when the hash annotation shows nothing changed."""

    body: Object


@dataclass(frozen=True, slots=True)
class DeleteObject:
    """DELETE with the uid as precondition."""

    kind: str
    name: str
    uid: str
    grace_seconds: int | None = None


@dataclass(frozen=True, slots=True)
class ResizePod:
    """Strategic merge patch on `pods/NAME/resize`."""

    name: str
    container: str
    cpu_limit: str
    cpu_request: str | None = None


@dataclass(frozen=True, slots=True)
class PublishStatus:
    """Server-side apply of all operator-owned status fields, guarded by `resourceVersion`."""

    status: Object


@dataclass(frozen=True, slots=True)
class EmitEvent:
    """An Event on the job. `reason` is CamelCase; the same (reason, message) is counted up, not repeated.

    It tells of a transition that the plan's PublishStatus records: it is sent only when that write has succeeded.
    """

    type: str
    reason: str
    message: str


Action = CreateObject | ApplyObject | DeleteObject | ResizePod | EmitEvent | PublishStatus


@dataclass(frozen=True, slots=True)
class Plan:
    """Actions in order: creates and applies, deletes, status, events.

    `look_again_seconds` is when to plan again, from `now`, if nothing happens before.
    """

    actions: tuple[Action, ...] = ()
    look_again_seconds: float | None = None

    @property
    def empty(self) -> bool:
        return not self.actions
