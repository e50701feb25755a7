"""The objects that a job's pods need around them: created, kept as they should be, and never taken from others. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from pydantic_core import from_json, to_json

from longboat_crds.reasons import ConditionType, Reason
from longboat_operator.model import (
    ANNOTATION_HASH,
    ANNOTATION_LIVE_HASH,
    LABEL_JOB,
    LABEL_JOB_UID,
    Action,
    ApplyObject,
    CreateObject,
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
from longboat_operator.pods.network import head_service, job_network, reward_network
from longboat_operator.reading.conditions import Finding, find
from longboat_operator.reading.view import JobView
from longboat_operator.rejections import OF_AN_EARLIER_JOB, OF_SOMETHING_ELSE

CLAIM = "PersistentVolumeClaim"
# How soon to look again at somebody else's object that is in the way, or missing: those are not watched.
LOOK_AGAIN_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Surroundings:
    """Holds what to do about them, what has to be known first, and what prevents pods; all empty if they are as they should be."""

    actions: tuple[Action, ...] = ()
    look_up: tuple[Target, ...] = ()
    finding: Finding | None = None


def surroundings_of(view: JobView) -> Surroundings:
    """Creates what is missing and repairs what was changed.

    Rules, for a name that the watch doesn't show: the object is created, by a write that leaves a stranger's object of that name alone.
    Once a name was found taken, whatever has one of the names is looked up first. What is the job's (by its uid: created before a crash, or
    stripped of its labels) is made as it should be. What a deleted job of this name left to the garbage collector is
    waited for. Anything else is a stranger's: it is left untouched, and nothing more is created.

    What is the job's is left alone if it was applied with the contents wanted now, and the content of the live object
    is what the API server kept then: so changes by hand are undone, and defaults that the server fills in make no
    difference. A claim, which people enlarge, is judged by its metadata alone.
    """
    wanted = [each for each in _wanted(view) if not _is_in_order(view, each)]
    unknown = [each.target for each in wanted if not view.is_known(*each.target)]
    if unknown and _found_taken(view, wanted):
        return Surroundings(look_up=tuple(unknown))
    mends: list[Action] = []
    news: list[Action] = []
    earlier: list[Object] = []
    strangers: list[Object] = []
    for each in wanted:
        live = view.find(*each.target)
        if live is None:
            news.append(CreateObject(each.body) if each.mark is None else ApplyObject(marked(each.body)))
        elif belongs_to(live, view.job.uid):
            mends += _repairs(view, each, live)
        elif belongs_to_earlier(live, view.job.name, view.job.uid):
            earlier.append(live)
        else:
            strangers.append(live)
    if strangers:
        message = "; ".join(_name_taken(view, live) for live in strangers)
        return Surroundings(tuple(mends), finding=Finding(ConditionType.SCHEDULED, False, Reason.NAME_TAKEN, message))
    if earlier:
        message = "; ".join(f"{_name(live)} {OF_AN_EARLIER_JOB}" for live in earlier)
        return Surroundings(
            tuple(mends), finding=Finding(ConditionType.SCHEDULED, False, Reason.PODS_STARTING, message)
        )
    return Surroundings((*mends, *news))


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
def _applied(job: JobRef, dns_peers: bytes) -> tuple[_Wanted, ...]:
    """Returns the wanted objects that depend on nothing but the job's identity and the operator's option `dns_peers`."""
    peers = tuple(from_json(dns_peers))
    bodies: tuple[Object, ...] = (
        driver_account(job),
        driver_role(job),
        driver_role_binding(job),
        head_service(job),
        job_network(job),
        reward_network(job, peers),
    )
    return tuple(_Wanted(_target(body), body, digest(body)) for body in bodies)


def _wanted(view: JobView) -> tuple[_Wanted, ...]:
    applied = _applied(view.job, to_json(view.observed.dns_peers))
    if view.spec.checkpoint.claim_name is not None:
        return applied
    claim = checkpoint_claim(view.job, view.spec.checkpoint)
    return (*applied, _Wanted(_target(claim), claim, None))


def _repairs(view: JobView, wanted: _Wanted, live: Object) -> Iterator[Action]:
    metadata = live["metadata"]
    if "deletionTimestamp" in metadata:
        return  # it is created again once it is gone
    if wanted.mark is None:
        if patch := metadata_patch(view.job, view.spec.checkpoint, live):
            yield PatchMetadata(CLAIM, metadata["name"], metadata["uid"], patch)
    else:
        yield ApplyObject(marked(wanted.body), metadata["uid"])


def _is_in_order(view: JobView, wanted: _Wanted) -> bool:
    """Whether an object that is applied is there as it should be, with the label that it is watched by."""
    live = view.child(*wanted.target)
    return live is not None and wanted.mark is not None and is_as_applied(live, wanted.mark)


def is_as_applied(live: Object, mark: str) -> bool:
    """Whether an object is as it was kept when what `mark` is the digest of was applied."""
    annotations = live["metadata"].get("annotations") or {}
    return bool(annotations.get(ANNOTATION_HASH) == mark and annotations.get(ANNOTATION_LIVE_HASH) == live["digest"])


def marked(body: Object) -> dict[str, Any]:
    """Returns what to apply: the body with its digest, and that of its content."""
    marks = {ANNOTATION_HASH: digest(body), ANNOTATION_LIVE_HASH: content_digest(body)}
    return {**body, "metadata": {**body["metadata"], "annotations": marks}}


def _name_taken(view: JobView, live: Object) -> str:
    """Says which object is in the way, and the cure.

    Rule: checkpoints are taken over only by `checkpoint.resumeFrom` or `checkpoint.claimName`, never by accident of
    name.
    """
    name = live["metadata"]["name"]
    if live["kind"] != CLAIM:
        return f"{_name(live)} {OF_SOMETHING_ELSE}"
    labels = live["metadata"].get("labels") or {}
    if LABEL_JOB_UID in labels and labels.get(LABEL_JOB) == view.job.name:
        return (
            f"{CLAIM} {name} was left by an earlier job of this name: to resume from its checkpoints, create a job with "
            f"another name (metadata.name) and checkpoint.resumeFrom.claimName: {name}; to start over, delete the claim"
        )
    return f"{_name(live)} {OF_SOMETHING_ELSE}; to keep checkpoints in it, set spec.checkpoint.claimName: {name}"


def _name(obj: Object) -> str:
    return f"{obj['kind']} {obj['metadata']['name']}"


def _target(body: Object) -> Target:
    return body["kind"], body["metadata"]["name"]
