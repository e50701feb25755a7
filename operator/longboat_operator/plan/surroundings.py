"""The objects that a job's pods need around them: created, kept as they should be, and never taken from others. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from pydantic_core import from_json, to_json

from longboat_crds.reasons import ConditionType, Reason
from longboat_crds.runtime import RLRuntimeSpec
from longboat_operator.model import (
    ANNOTATION_HASH,
    ANNOTATION_LIVE_HASH,
    DEFAULT_ACCOUNT,
    LABEL_JOB_UID,
    Action,
    ApplyObject,
    CreateObject,
    DeleteObject,
    Object,
    PatchMetadata,
    Target,
    belongs_to,
    belongs_to_earlier,
    content_digest,
    digest,
)
from longboat_operator.pods.access import driver_account, driver_role, driver_role_binding
from longboat_operator.pods.claim import (
    ONE_POD,
    access_modes,
    brought_claims,
    checkpoint_claim,
    metadata_patch,
    on_one_node,
)
from longboat_operator.pods.names import JobRef
from longboat_operator.pods.network import environment_network, head_service, job_network, reward_network
from longboat_operator.pods.pod import driver_account_name
from longboat_operator.reading.conditions import Finding, find
from longboat_operator.reading.view import JobView
from longboat_operator.rejections import OF_AN_EARLIER_JOB, OF_SOMETHING_ELSE

ACCOUNT = "ServiceAccount"
CLAIM = "PersistentVolumeClaim"
NETWORK_POLICY = "NetworkPolicy"
# How soon to look again at somebody else's object that is in the way, or missing: those are not watched.
LOOK_AGAIN_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What to do about them, what has to be looked up first, and what prevents pods; all empty if they are in order."""

    actions: tuple[Action, ...] = ()
    look_up: tuple[Target, ...] = ()
    finding: Finding | None = None


def surroundings_of(view: JobView, job: JobRef, runtime: RLRuntimeSpec, *, for_driver: bool) -> Surroundings:
    """Creates what is missing and repairs what was changed.

    `job` has the labels and annotations of all objects. `for_driver`: a driver pod is about to be created, which uses the account.

    Rules for a name that the watch doesn't show:
    * the object is created, by a write that leaves a stranger's object of that name alone. Once a name was found taken, whatever has one of
      the names is looked up first;
    * what is the job's, by its uid, is made as it should be: it was created before a crash, or stripped of its labels;
    * what a deleted job of this name left to the garbage collector is waited for. If the spec says so (checkpoint.adopt), the claim that it
      left is taken over, and nothing more is created until that shows;
    * anything else is a stranger's: it is left untouched, and nothing more is created.

    What is the job's is left alone if it was applied with today's contents, and the live object still is what the API server stored then.
    So changes by hand are undone, and defaults that the server fills in make no difference. A claim, which people enlarge, is judged by its
    metadata alone.
    """
    lacking = _lacking_pull_secrets(view, runtime) if for_driver else ()
    if lacking is None:
        return Surroundings(look_up=(DEFAULT_ACCOUNT,))
    wanted = [
        each
        for each in _wanted(view, job, runtime)
        if (lacking and each.target[0] == ACCOUNT) or not _is_in_order(view, each)
    ]
    unknown = [each.target for each in wanted if not view.is_known(*each.target)]
    if unknown and _found_taken(view, wanted):
        return Surroundings(look_up=tuple(unknown))
    mends: list[Action] = []
    news: list[Action] = []
    awaited: list[str] = []
    taken: list[str] = []
    for each in wanted:
        live = view.find(*each.target)
        body = _with_pull_secrets(each.body, lacking, live) if each.target[0] == ACCOUNT else each.body
        if live is None:
            news.append(CreateObject(body) if each.mark is None else ApplyObject(marked(body, each.mark)))
        elif belongs_to(live, view.job.uid):
            mends += _repairs(view, job, replace(each, body=body), live)
        elif belongs_to_earlier(live, view.job.name, view.job.uid):
            awaited.append(f"{_name(live)} {OF_AN_EARLIER_JOB}")
        elif view.spec.checkpoint.adopt and _is_left_claim(live):
            mends += _repairs(view, job, each, live)
            is_deleted = "deletionTimestamp" in live["metadata"]
            awaited.append(f"{_name(live)} {OF_AN_EARLIER_JOB if is_deleted else 'is taken over from a deleted job'}")
        else:
            taken.append(_name_taken(live))
    if taken or awaited:
        reason = Reason.NAME_TAKEN if taken else Reason.PODS_STARTING
        finding = Finding(ConditionType.SCHEDULED, False, reason, "; ".join(taken or awaited))
        return Surroundings(tuple(mends), finding=finding)
    return Surroundings((*mends, *news, *_out_of_use(view, wanted)))


def _lacking_pull_secrets(view: JobView, runtime: RLRuntimeSpec) -> tuple[str, ...] | None:
    """Names the pull Secrets that a new driver pod needs and its account lacks; None if `DEFAULT_ACCOUNT` has to be looked up to tell.

    Rule: an account that the operator makes has those that the template names. If it says nothing of them, it has those of the namespace's
    account `default`, which pods of the other roles use. That one is looked up for each driver pod; the answer may be a minute old.
    """
    if driver_account_name(view.job, runtime) != view.job.driver_account:
        return ()
    settings = runtime.driver_service_account
    if settings is not None and settings.image_pull_secrets is not None:
        names = [secret.name for secret in settings.image_pull_secrets]
    elif not view.is_known(*DEFAULT_ACCOUNT):
        return None
    else:
        names = _secrets_in(view.find(*DEFAULT_ACCOUNT))
    present = _secrets_in(view.child(ACCOUNT, view.job.driver_account))
    return tuple(name for name in names if name not in present)


def _secrets_in(account: Object | None) -> list[str]:
    return [secret["name"] for secret in (account or {}).get("imagePullSecrets") or () if secret.get("name")]


def _with_pull_secrets(body: Object, lacking: Sequence[str], live: Object | None) -> Object:
    """Returns the account with these Secrets and those that it has: others add some too, and the list is applied as a whole."""
    names = dict.fromkeys([*_secrets_in(live), *lacking])
    return {**body, "imagePullSecrets": [{"name": name} for name in names]} if names else body


def _out_of_use(view: JobView, not_in_order: Sequence[_Wanted]) -> Iterator[Action]:
    """Yields the deletion of the NetworkPolicy with the job's own name, which it had up to release 0.2.0; another job could need that name.

    Rule: it goes once the policy with today's name, which says the same, is in place. Without the right to delete it stays as long as the
    job.
    """
    old = view.child(NETWORK_POLICY, view.job.name)
    replaced = (NETWORK_POLICY, view.job.network) not in {each.target for each in not_in_order}
    if old is not None and replaced and view.observed.may_delete and "deletionTimestamp" not in old["metadata"]:
        yield DeleteObject(NETWORK_POLICY, view.job.name, old["metadata"]["uid"])


def _found_taken(view: JobView, wanted: Sequence[_Wanted]) -> bool:
    """Whether a write to one of the names was refused, or the published condition says that one is taken."""
    if any(each.target[1] in view.observed.rejections for each in wanted):
        return True
    scheduled = find(view.status.conditions, ConditionType.SCHEDULED)
    return scheduled is not None and (scheduled.reason == Reason.NAME_TAKEN or OF_AN_EARLIER_JOB in scheduled.message)


@dataclass(frozen=True, slots=True)
class ClaimsInUse:
    """Says whether pods that mount the checkpoint claims must share a node; what has to be looked up to tell, or what prevents it."""

    one_node: bool = False
    look_up: tuple[Target, ...] = ()
    finding: Finding | None = None


def claims_in_use(view: JobView) -> ClaimsInUse:
    """Looks at the access modes of all claims that driver and trainer pods mount: the job's own, and those that the user brings.

    Rule: no pods are created while a claim that the user brings is missing, or usable by one pod only: they could never start.
    """
    checkpoint = view.spec.checkpoint
    brought = list(brought_claims(checkpoint))
    if unknown := [(CLAIM, name) for _, name in brought if not view.is_known(CLAIM, name)]:
        return ClaimsInUse(look_up=tuple(unknown))
    one_node = False
    if checkpoint.claim_name is None:
        own = view.find(CLAIM, view.job.checkpoint_claim)
        one_node = on_one_node(access_modes(own) if own else [str(checkpoint.volume.access_mode)])
    for field, name in brought:
        claim = view.find(CLAIM, name)
        if claim is None:
            message = f"{field}: {CLAIM} {name} doesn't exist; create it, or correct the name in another job"
            return ClaimsInUse(finding=Finding(ConditionType.SCHEDULED, False, Reason.VOLUME_NOT_READY, message))
        modes = access_modes(claim)
        if ONE_POD in modes:
            message = (
                f"{field}: {CLAIM} {name} is {ONE_POD}, but driver and trainer pods mount it together: name a claim that "
                "is ReadWriteMany, or ReadWriteOnce for all of them on one node, in another job"
            )
            return ClaimsInUse(finding=Finding(ConditionType.SCHEDULED, False, Reason.VOLUME_NOT_READY, message))
        one_node = one_node or on_one_node(modes, read_only=name != checkpoint.claim_name)
    return ClaimsInUse(one_node)


@dataclass(frozen=True, slots=True)
class _Wanted:
    """An object that should exist. `mark` is the digest of what is applied; None: a claim, which is created and not applied."""

    target: Target
    body: Object
    mark: str | None


# Cached: making these again would be most of the work of a plan that finds nothing to do.
@lru_cache(maxsize=4096)
def _applied(job: JobRef, account: str, dns_peers: bytes, *, plays: bool) -> tuple[_Wanted, ...]:
    """Returns the wanted objects that depend only on the job's identity and metadata, the driver's account and `dns_peers`.

    `plays` is whether it has environments.
    """
    peers = tuple(from_json(dns_peers))
    bodies: tuple[Object, ...] = (
        driver_role(job),
        driver_role_binding(job, account),
        head_service(job),
        job_network(job),
        reward_network(job, peers),
        *([environment_network(job, peers)] if plays else []),
    )
    return tuple(_Wanted(_target(body), body, digest(body)) for body in bodies)


def _wanted(view: JobView, job: JobRef, runtime: RLRuntimeSpec) -> Iterator[_Wanted]:
    name = driver_account_name(job, runtime)
    if name == job.driver_account:
        account = driver_account(job, runtime)
        yield _Wanted(_target(account), account, digest(account))
    yield from _applied(job, name, to_json(view.observed.dns_peers), plays=bool(view.spec.environments))
    if view.spec.checkpoint.claim_name is None:
        claim = checkpoint_claim(job, view.spec.checkpoint)
        yield _Wanted(_target(claim), claim, None)


def _repairs(view: JobView, job: JobRef, wanted: _Wanted, live: Object) -> Iterator[Action]:
    metadata = live["metadata"]
    if "deletionTimestamp" in metadata:
        return  # it is created again once it is gone
    if wanted.mark is None:
        if patch := metadata_patch(job, view.spec.checkpoint, live):
            yield PatchMetadata(CLAIM, metadata["name"], metadata["uid"], patch)
    else:
        yield ApplyObject(marked(wanted.body, wanted.mark), metadata["uid"])


def _is_in_order(view: JobView, wanted: _Wanted) -> bool:
    """Whether an object that is applied is there as it should be, with the label that it is watched by."""
    live = view.child(*wanted.target)
    return live is not None and wanted.mark is not None and is_as_applied(live, wanted.mark)


def is_as_applied(live: Object, mark: str) -> bool:
    """Whether the live object is what the API server stored when the object with the digest `mark` was applied."""
    annotations = live["metadata"].get("annotations") or {}
    return bool(annotations.get(ANNOTATION_HASH) == mark and annotations.get(ANNOTATION_LIVE_HASH) == live["digest"])


def marked(body: Object, mark: str) -> dict[str, Any]:
    """Returns what to apply: the body, annotated with its digest `mark` and with the digest of its content."""
    annotations = {**body["metadata"].get("annotations", {}), ANNOTATION_HASH: mark}
    annotations[ANNOTATION_LIVE_HASH] = content_digest(body)
    return {**body, "metadata": {**body["metadata"], "annotations": annotations}}


def _is_left_claim(live: Object) -> bool:
    """Whether an earlier job of this name left the claim: no other job's claim has this name, and it has the uid of a job."""
    metadata = live["metadata"]
    return live["kind"] == CLAIM and any(
        LABEL_JOB_UID in (metadata.get(marks) or {}) for marks in ("labels", "annotations")
    )


def _name_taken(live: Object) -> str:
    """Says which object is in the way, and the cure.

    Rule: checkpoints are taken over only by `checkpoint.adopt`, `checkpoint.resumeFrom` or `checkpoint.claimName`, never by accident of
    name.
    """
    name = live["metadata"]["name"]
    if live["kind"] != CLAIM:
        return f"{_name(live)} {OF_SOMETHING_ELSE}"
    if _is_left_claim(live):
        return (
            f"{CLAIM} {name} was left by an earlier job of this name: to take it over and continue from its checkpoints, set "
            f"spec.checkpoint.adopt: true; to resume from a copy, create a job with another name (metadata.name) and "
            f"checkpoint.resumeFrom.claimName: {name}; to start over, delete the claim"
        )
    return f"{_name(live)} {OF_SOMETHING_ELSE}; to keep checkpoints in it, set spec.checkpoint.claimName: {name}"


def _name(obj: Object) -> str:
    return f"{obj['kind']} {obj['metadata']['name']}"


def _target(body: Object) -> Target:
    return body["kind"], body["metadata"]["name"]
