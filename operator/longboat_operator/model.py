"""Defines the data that passes between watch, plan and apply: a frozen snapshot in, a plan out. Pure.

Kubernetes objects are plain dicts as the API server gives them (children trimmed to what plans read).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

Object = Mapping[str, Any]
# What a plan writes or looks up: mostly the kind and name of an object in the job's namespace.
Target = tuple[str, str]
# The account of pods that name none.
DEFAULT_ACCOUNT: Target = ("ServiceAccount", "default")

FIELD_MANAGER = "longboat-operator"
# Grants have their own manager, so that the plans of a job and of its capacity don't drop each other's fields.
# Stored jobs have this name in their managed fields: under another one, the old grant would stay.
GRANT_FIELD_MANAGER = "longboat-operator-pool"
LABEL_JOB = "longboat.dev/job"
LABEL_ROLE = "longboat.dev/role"
LABEL_POOL = "longboat.dev/reward-pool"
LABEL_ENVIRONMENT_POOL = "longboat.dev/environment-pool"
LABEL_INDEX = "longboat.dev/index"
LABEL_ATTEMPT = "longboat.dev/attempt"
LABEL_JOB_UID = "longboat.dev/job-uid"
ANNOTATION_HASH = "longboat.dev/applied-hash"
ANNOTATION_LIVE_HASH = "longboat.dev/live-hash"
ANNOTATION_RAY_TOKEN = "longboat.dev/ray-token-secret"
ANNOTATION_REVISION = "longboat.dev/revision"

# How long a request that isn't a list may take, unless the operator is configured otherwise; an admission webhook may take some seconds.
REQUEST_TIMEOUT_SECONDS = 10.0


# Who answers DNS unless the operator is configured otherwise: NetworkPolicyPeers.
DNS_PEERS: tuple[Object, ...] = (
    {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "kube-system"}}},
)


def digest(body: Object) -> str:
    """Computes 16 hexadecimal digits that name a JSON value, whatever the order of its keys."""
    text = json.dumps(body, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def content_digest(obj: Object) -> str:
    """Digests an object without apiVersion, kind, metadata and status; for a ServiceAccount only of whether pods get its token.

    Others may rightly add Secrets and image pull Secrets to a ServiceAccount, and the cluster gives a Service its addresses: those are
    left out.
    """
    if obj["kind"] == "ServiceAccount":
        return digest({"automountServiceAccountToken": obj.get("automountServiceAccountToken")})
    if obj["kind"] == "Service":
        return digest({key: value for key, value in (obj.get("spec") or {}).items() if key not in _ADDRESSES})
    return digest({key: value for key, value in obj.items() if key not in _NOT_CONTENT})


_NOT_CONTENT = frozenset({"apiVersion", "kind", "metadata", "status"})
_ADDRESSES = frozenset({"clusterIPs", "ipFamilies", "ipFamilyPolicy"})


def belongs_to(obj: Object, uid: str) -> bool:
    """Whether a child belongs to the job with this uid.

    Rule: by an owner reference or, as a claim that may outlive the job, by the uid in a label or in the annotation of the same
    name, which stays if somebody removes the label.
    """
    metadata = obj.get("metadata", {})
    if any(reference.get("uid") == uid for reference in metadata.get("ownerReferences") or ()):
        return True
    return uid in {(metadata.get(marks) or {}).get(LABEL_JOB_UID) for marks in ("labels", "annotations")}


def belongs_to_earlier(obj: Object, name: str, uid: str) -> bool:
    """Whether a deleted job of the same name as the one with this uid owns it: the garbage collector will remove it."""
    return any(
        (reference.get("kind"), reference.get("name")) == ("RLJob", name) and reference.get("uid") != uid
        for reference in obj.get("metadata", {}).get("ownerReferences") or ()
    )


@dataclass(frozen=True, slots=True)
class JobKey:
    """Names one RLJob."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"

    @property
    def capacity(self) -> CapacityKey:
        """Names the job's capacity."""
        return CapacityKey(self.namespace, self.name)


@dataclass(frozen=True, slots=True)
class CapacityKey:
    """Names a job's capacity, which only the capacity's plan divides. It has the job's name."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"capacity {self.namespace}/{self.name}"

    @property
    def job(self) -> JobKey:
        """Names the job that has this capacity."""
        return JobKey(self.namespace, self.name)


# Names what a plan is made for.
Key = JobKey | CapacityKey


# Sorts jobs that wait for nodes, the one that may wait longest first: negated pod priority, creation time, uid.
Rank = tuple[int, str, str]


@dataclass(frozen=True, slots=True)
class Contention:
    """Summarizes the other jobs whose minimum of pods lacks nodes, according to their statuses.

    `first_half_placed` ranks first among those that hold nodes for part of it. `quota_refuses`: a quota of the job's namespace refuses a
    pod of another job.
    """

    first_half_placed: Rank | None = None
    quota_refuses: bool = False


@dataclass(frozen=True, slots=True)
class Observed:
    """Holds everything that the plan of a job, or of its capacity, may read. `job` is None when it is gone.

    `children` maps kind (`Pod`, `Service`, `ServiceAccount`, `Role`, `RoleBinding`, `Secret`, `NetworkPolicy`,
    `PersistentVolumeClaim`, `ControllerRevision`, `PodDisruptionBudget`) to objects by name, only those that are the job's (`belongs_to`).
    `runtime` is the live runtime template; the one that the job uses is the newest ControllerRevision.
    `rejections` say, by object name, how the API server last refused what plans write or look up, or that it has long not answered.
    `runtime_names` are the names of all templates that the job could refer to, by kind, if the one that it refers to doesn't exist.
    `last_states` are the last states of pods that are gone, by name, until the job's status says so. `contention` is about other jobs.
    `cordoned` are the unschedulable nodes among those of its pods; None while that isn't known, and always unless `may_watch_nodes`.

    `looked_up` holds the answers to `Plan.look_up`: an object as `children` has it, or None where there is none. A Secret, which is never
    read, has its name alone; the answer for `("Event", POD)` is the newest warning about the pod. `random` are eight hexadecimal digits,
    new with every snapshot, for names that nobody can guess.

    `sees_cluster_runtimes` and `may_watch_nodes` are False for an operator that is installed for single namespaces. `may_delete`: it may
    delete Secrets and NetworkPolicies of jobs. `dns_peers` and `request_seconds`, how long a write may be under way, are its options, and
    `release` names its Lease. A capacity's snapshot has only rollout pods, no template, and defaults in place of these.
    """

    key: Key
    job: Object | None
    children: Mapping[str, Mapping[str, Object]] = field(default_factory=dict)
    last_states: Mapping[str, Object] = field(default_factory=dict)
    cordoned: frozenset[str] | None = None
    may_watch_nodes: bool = False
    runtime: Object | None = None
    rejections: Mapping[str, str] = field(default_factory=dict)
    sees_cluster_runtimes: bool = True
    dns_peers: tuple[Object, ...] = DNS_PEERS
    release: str | None = None
    request_seconds: float = REQUEST_TIMEOUT_SECONDS
    may_delete: bool = False
    runtime_names: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    looked_up: Mapping[Target, Object | None] = field(default_factory=dict)
    random: str = "00000000"
    contention: Contention = Contention()


@dataclass(frozen=True, slots=True)
class CreateObject:
    """POST; with `dry_run`, a dry run first, unless one was lately accepted in the namespace for an object of the same shape.

    `dry_run` names the shape: the digest of everything but what is the job's own, such as its name.
    "Already exists" is success only if the existing object is the job's, and never for a Secret, which can't be read.
    `random_key` names a key of `stringData` that apply fills with 64 random hexadecimal digits.
    """

    body: Object
    dry_run: str | None = None
    random_key: str | None = None


@dataclass(frozen=True, slots=True)
class ApplyObject:
    """Server-side apply with our field manager: forced onto the object of this uid; without one the name must be free.

    Afterwards the annotation `ANNOTATION_LIVE_HASH` is the digest of the content as the API server keeps it, its defaults
    filled in.
    """

    body: Object
    uid: str | None = None


@dataclass(frozen=True, slots=True)
class PatchMetadata:
    """Strategic merge patch of the metadata of the object that has this uid; nothing else of it is touched."""

    kind: str
    name: str
    uid: str
    metadata: Object


@dataclass(frozen=True, slots=True)
class DeleteObject:
    """DELETE with the uid as precondition; None for a Secret, which is never read, so that its uid isn't known."""

    kind: str
    name: str
    uid: str | None
    grace_seconds: int | None = None


@dataclass(frozen=True, slots=True)
class ResizePod:
    """Strategic merge patch on `pods/NAME/resize`, of the pod as of `version` (its resourceVersion).

    If the pod has another one by then nothing is changed, and the key is planned again.
    """

    name: str
    container: str
    cpu_limit: str
    cpu_request: str
    version: str


@dataclass(frozen=True, slots=True)
class PublishStatus:
    """Server-side apply of all operator-owned status fields but the grant, guarded by `resourceVersion`."""

    status: Object


@dataclass(frozen=True, slots=True)
class PublishGrant:
    """Server-side apply of `status.allocation.grant` alone, guarded by `resourceVersion`. None: the job has no grant any more."""

    grant: Object | None


@dataclass(frozen=True, slots=True)
class EmitEvent:
    """An Event on the job. `reason` is CamelCase; the same (reason, message) is counted up, not repeated.

    It reports a transition that the plan's PublishStatus records: it is sent only when that write has succeeded.
    """

    type: str
    reason: str
    message: str


Action = (
    CreateObject | ApplyObject | PatchMetadata | DeleteObject | ResizePod | EmitEvent | PublishStatus | PublishGrant
)


def target_of(action: Action) -> Target:
    """Returns what an action writes: its kind and name; in place of a name an event's reason, or which part of the job's status it is."""
    match action:
        case CreateObject() | ApplyObject():
            return action.body["kind"], action.body["metadata"]["name"]
        case DeleteObject() | PatchMetadata():
            return action.kind, action.name
        case ResizePod():
            return "Pod", action.name
        case EmitEvent():
            return "Event", action.reason
        case PublishStatus():
            return "RLJob", "status"
        case PublishGrant():
            return "RLJob", "grant"


@dataclass(frozen=True, slots=True)
class Plan:
    """Actions in order: creates and applies, deletes, status, resizes (which the status has to tell of first), events.

    `look_again_seconds` is when to plan again, from `now`, if nothing happens before. `look_up` names what the plan has to
    know and no watch reports: the plan is made again, from the same snapshot with the answers added, before anything is
    carried out.
    """

    actions: tuple[Action, ...] = ()
    look_again_seconds: float | None = None
    look_up: tuple[Target, ...] = ()

    @property
    def empty(self) -> bool:
        return not self.actions
