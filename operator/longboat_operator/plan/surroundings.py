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
from longboat_operator.pods.network import head_service, job_network, reward_network
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
    """Holds what to do about them, what has to be known first, and what prevents pods; all empty if they are as they should be."""

    actions: tuple[Action, ...] = ()
    look_up: tuple[Target, ...] = ()
    finding: Finding | None = None


def surroundings_of(view: JobView, runtime: RLRuntimeSpec, *, for_driver: bool = False) -> Surroundings:
    """Creates what is missing and repairs what was changed. `for_driver`: a driver pod is about to be created, which uses the account.

    Rules, for a name that the watch doesn't show: the object is created, by a write that leaves a stranger's object of that name alone.
    Once a name was found taken, whatever has one of the names is looked up first. What is the job's (by its uid: created before a crash, or
    stripped of its labels) is made as it should be. What a deleted job of this name left to the garbage collector is
    waited for. Anything else is a stranger's: it is left untouched, and nothing more is created.

    What is the job's is left alone if it was applied with the contents wanted now, and the content of the live object
    is what the API server kept then: so changes by hand are undone, and defaults that the server fills in make no
    difference. A claim, which people enlarge, is judged by its metadata alone.

    A claim that a deleted job of this name left is taken over if the spec says so (checkpoint.adopt), and nothing more is created until
    that shows.
    """
    job = view.job.with_common(view.spec, runtime)
    everything = tuple(_wanted(view, job, runtime))
    secrets = _pull_secrets(view, runtime) if for_driver else _PullSecrets()
    if secrets.look_up:
        return Surroundings(look_up=secrets.look_up)
    wanted = [
        each for each in everything if (secrets.lacking and each.target[0] == ACCOUNT) or not _is_in_order(view, each)
    ]
    unknown = [each.target for each in wanted if not view.is_known(*each.target)]
    if unknown and _found_taken(view, wanted):
        return Surroundings(look_up=tuple(unknown))
    mends: list[Action] = []
    news: list[Action] = []
    earlier: list[Object] = []
    adopted: list[Object] = []
    strangers: list[Object] = []
    for each in wanted:
        live = view.find(*each.target)
        body = _with_pull_secrets(each.body, secrets.lacking, live) if each.target[0] == ACCOUNT else each.body
        if live is None:
            news.append(CreateObject(body) if each.mark is None else ApplyObject(marked(body, each.mark)))
        elif belongs_to(live, view.job.uid):
            mends += _repairs(view, job, replace(each, body=body), live)
        elif belongs_to_earlier(live, view.job.name, view.job.uid):
            earlier.append(live)
        elif view.spec.checkpoint.adopt and _is_left_claim(live):
            mends += _repairs(view, job, each, live)
            (earlier if "deletionTimestamp" in live["metadata"] else adopted).append(live)
        else:
            strangers.append(live)
    if strangers:
        message = "; ".join(_name_taken(live) for live in strangers)
        return Surroundings(tuple(mends), finding=Finding(ConditionType.SCHEDULED, False, Reason.NAME_TAKEN, message))
    if earlier:
        message = "; ".join(f"{_name(live)} {OF_AN_EARLIER_JOB}" for live in earlier)
        return Surroundings(
            tuple(mends), finding=Finding(ConditionType.SCHEDULED, False, Reason.PODS_STARTING, message)
        )
    if adopted:
        message = f"{_name(adopted[0])} is taken over from the deleted job that left it."
        return Surroundings(
            tuple(mends), finding=Finding(ConditionType.SCHEDULED, False, Reason.PODS_STARTING, message)
        )
    return Surroundings((*mends, *news, *_out_of_use(view, wanted)))


@dataclass(frozen=True, slots=True)
class _PullSecrets:
    """Names the Secrets that the driver's account lacks for its next pod, or what has to be looked up to tell."""

    lacking: tuple[str, ...] = ()
    look_up: tuple[Target, ...] = ()


def _pull_secrets(view: JobView, runtime: RLRuntimeSpec) -> _PullSecrets:
    """Returns the Secrets with which a new driver pod pulls images, if the operator makes its account, and that lacks them.

    Rule: those that the template names or, if it says nothing of them, those of the namespace's account `default`, which pods of the other
    roles have. The latter is looked up for each driver pod, by the answer of the last minute.
    """
    if driver_account_name(view.job, runtime) != view.job.driver_account:
        return _PullSecrets()
    settings = runtime.driver_service_account
    if settings is not None and settings.image_pull_secrets is not None:
        names = [secret.name for secret in settings.image_pull_secrets]
    elif not view.is_known(*DEFAULT_ACCOUNT):
        return _PullSecrets(look_up=(DEFAULT_ACCOUNT,))
    else:
        names = _secrets_in(view.find(*DEFAULT_ACCOUNT))
    present = _secrets_in(view.child(ACCOUNT, view.job.driver_account))
    return _PullSecrets(tuple(name for name in names if name not in present))


def _secrets_in(account: Object | None) -> list[str]:
    return [secret["name"] for secret in (account or {}).get("imagePullSecrets") or () if secret.get("name")]


def _with_pull_secrets(body: Object, lacking: Sequence[str], live: Object | None) -> Object:
    """Returns the account with these Secrets, and with those that it has: others add some too, and the list is applied as a whole."""
    names = dict.fromkeys([*_secrets_in(live), *lacking])
    return {**body, "imagePullSecrets": [{"name": name} for name in names]} if names else body


def _out_of_use(view: JobView, not_in_order: Sequence[_Wanted]) -> Iterator[Action]:
    """Yields the deletion of the NetworkPolicy that has the job's own name, as all had up to release 0.2.0.

    Another job could need the name. It goes once the one with today's name is in place, since the two say the same; without the right to
    delete it stays as long as the job.
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
def _applied(job: JobRef, account: str, dns_peers: bytes) -> tuple[_Wanted, ...]:
    """Returns the wanted objects that depend on nothing but the job's identity, the account of the driver's pods and the operator's `dns_peers`."""
    peers = tuple(from_json(dns_peers))
    bodies: tuple[Object, ...] = (
        driver_role(job),
        driver_role_binding(job, account),
        head_service(job),
        job_network(job),
        reward_network(job, peers),
    )
    return tuple(_Wanted(_target(body), body, digest(body)) for body in bodies)


def _wanted(view: JobView, job: JobRef, runtime: RLRuntimeSpec) -> Iterator[_Wanted]:
    name = driver_account_name(job, runtime)
    if name == job.driver_account:
        account = driver_account(job, runtime)
        yield _Wanted(_target(account), account, digest(account))
    yield from _applied(job, name, to_json(view.observed.dns_peers))
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
    """Whether an object is as it was kept when what `mark` is the digest of was applied."""
    annotations = live["metadata"].get("annotations") or {}
    return bool(annotations.get(ANNOTATION_HASH) == mark and annotations.get(ANNOTATION_LIVE_HASH) == live["digest"])


def marked(body: Object, mark: str) -> dict[str, Any]:
    """Returns what to apply: the body with `mark`, the digest by which it is recognized, and the digest of its content."""
    annotations = {**body["metadata"].get("annotations", {}), ANNOTATION_HASH: mark}
    annotations[ANNOTATION_LIVE_HASH] = content_digest(body)
    return {**body, "metadata": {**body["metadata"], "annotations": annotations}}


def _is_left_claim(live: Object) -> bool:
    """Whether an earlier job of this name left the claim: it has its name for this job alone, and the mark of a job."""
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
