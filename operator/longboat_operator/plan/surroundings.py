"""The objects that a job's pods need around them. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from longboat_operator.model import ANNOTATION_HASH, ApplyObject, Object, belongs_to, digest
from longboat_operator.plan.view import JobView
from longboat_operator.pods.access import driver_account, driver_role, driver_role_binding
from longboat_operator.pods.claim import checkpoint_claim
from longboat_operator.pods.network import job_network, reward_network
from longboat_operator.pods.service import head_service


def needed(view: JobView) -> tuple[ApplyObject, ...]:
    """What has to be applied: objects that are missing or were applied with other contents.

    Rule: an object carries the digest of what was applied; it is judged by that alone, so defaults that the API server
    fills in are no difference.
    """
    return tuple(ApplyObject(body) for body in map(_marked, _all(view)) if not _stands(view, body))


def foreign_claim(view: JobView) -> str | None:
    """Name of the claim that the job would make, if an earlier job of its name left it behind.

    Rule: checkpoints are taken over only by `checkpoint.resumeFrom` or `checkpoint.claimName`, never by accident of
    name.
    """
    if view.spec.checkpoint.claim_name:
        return None
    name = view.job.checkpoint_claim
    found = view.child("PersistentVolumeClaim", name)
    return name if found and not belongs_to(found, view.job.uid) else None


def _all(view: JobView) -> Iterator[Object]:
    job = view.job
    yield driver_account(job)
    yield driver_role(job)
    yield driver_role_binding(job)
    yield head_service(job)
    yield job_network(job)
    yield reward_network(job, view.observed.dns_peers)
    if view.spec.checkpoint.claim_name is None:
        yield checkpoint_claim(job, view.spec.checkpoint)


def _marked(body: Object) -> dict[str, Any]:
    metadata = dict(body["metadata"]) | {"annotations": {ANNOTATION_HASH: digest(body)}}
    return dict(body) | {"metadata": metadata}


def _stands(view: JobView, body: Object) -> bool:
    found = view.child(body["kind"], body["metadata"]["name"])
    annotations = found["metadata"].get("annotations") or {} if found else {}
    return bool(annotations.get(ANNOTATION_HASH) == body["metadata"]["annotations"][ANNOTATION_HASH])
