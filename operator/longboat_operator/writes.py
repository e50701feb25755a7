"""The kinds of write a plan is made of. Their order, and what a rejection means, are decided in `apply`."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any

from longboat_operator.kube.client import STRATEGIC_MERGE_PATCH, KubeClient
from longboat_operator.kube.errors import AlreadyExistsError, ConflictError, NotFoundError
from longboat_operator.kube.events import EventRecorder
from longboat_operator.kube.resources import BY_KIND, POD, RL_JOB, SECRET, Resource
from longboat_operator.model import (
    ANNOTATION_LIVE_HASH,
    FIELD_MANAGER,
    GRANT_FIELD_MANAGER,
    LABEL_JOB,
    Action,
    ApplyObject,
    CreateObject,
    DeleteObject,
    EmitEvent,
    JobKey,
    Object,
    Observed,
    PatchMetadata,
    PublishGrant,
    PublishStatus,
    ResizePod,
    belongs_to,
    belongs_to_earlier,
    content_digest,
)
from longboat_operator.rejections import OF_AN_EARLIER_JOB, OF_SOMETHING_ELSE, WITHOUT_ITS_LABEL
from longboat_operator.watch.cache import Cache, key_of, version_of
from longboat_operator.watch.expectations import Expectation
from longboat_operator.watch.trim import trim

_TOKEN_BYTES = 32


class NotOursError(AlreadyExistsError):
    """The name is taken by something that isn't the job's."""

    def __init__(self, message: str) -> None:
        super().__init__(409, "AlreadyExists", message)


class Writes:
    """Writes for one observed job, or its capacity, and collects in `expectations` what the cache has to show afterwards.

    `published` is the job with the status that its plan published last.
    `execute` returns what happened, in a word for the metric. It and `dry_run` raise `KubeError`, and what the client's gate raises.
    """

    def __init__(self, client: KubeClient, cache: Cache, events: EventRecorder, observed: Observed) -> None:
        self.expectations: list[Expectation] = []
        self.published: Object | None = None
        self._client = client
        self._cache = cache
        self._events = events
        self._observed = observed
        self._namespace = observed.key.namespace

    async def execute(self, action: Action) -> str:
        """Executes any action."""
        match action:
            case CreateObject():
                return await self._create(action)
            case ApplyObject():
                return await self._apply(action)
            case PatchMetadata():
                return await self._patch_metadata(action)
            case DeleteObject():
                return await self._delete(action)
            case ResizePod():
                return await self._resize(action)
            case EmitEvent():
                return await self._emit(action)
            case PublishStatus():
                return await self._publish(action.status, FIELD_MANAGER)
            case PublishGrant(grant=grant):
                # A field that a manager leaves out of an apply is removed, unless another manager has applied it.
                status = {} if grant is None else {"allocation": {"grant": grant}}
                return await self._publish(status, GRANT_FIELD_MANAGER)

    async def dry_run(self, action: CreateObject) -> None:
        """Asks whether the create would be accepted, and raises if not; a name that is taken is no error yet."""
        try:
            await self._client.create(BY_KIND[action.body["kind"]], action.body, dry_run=True)
        except AlreadyExistsError:
            return  # the real create finds out who owns it

    def shows_job(self) -> bool:
        """Whether the cache shows the observed job, and doesn't show that it is being deleted."""
        return self._is_observed(self._cache.job(JobKey(self._namespace, self._observed.key.name)))

    async def job_exists(self) -> bool:
        """Asks whether the observed job exists and isn't being deleted."""
        try:
            return self._is_observed(await self._client.get(RL_JOB, self._namespace, self._observed.key.name))
        except NotFoundError:
            return False

    def _is_observed(self, job: Object | None) -> bool:
        uid = (self._observed.job or {})["metadata"]["uid"]
        return job is not None and job["metadata"]["uid"] == uid and "deletionTimestamp" not in job["metadata"]

    async def _create(self, action: CreateObject) -> str:
        resource, body = BY_KIND[action.body["kind"]], action.body
        if action.random_key is not None:
            strings = {**body.get("stringData", {}), action.random_key: secrets.token_hex(_TOKEN_BYTES)}
            body = {**body, "stringData": strings}
        word = "done"
        try:
            created = await self._client.create(resource, body)
        except AlreadyExistsError:
            if resource is SECRET:
                raise  # its owner can't be read
            word = "existed"
            created = await self._existing(resource, body)
            labels = body["metadata"].get("labels") or {}
            if not labels.items() <= (created["metadata"].get("labels") or {}).items():
                patch = {"metadata": {"uid": created["metadata"]["uid"], "labels": labels}}
                name = body["metadata"]["name"]
                created = await self._client.patch(resource, self._namespace, name, patch, STRATEGIC_MERGE_PATCH)
        if resource is SECRET:
            self._cache.put(trim(action.body))  # never read again: this is all we know about it
        else:
            self._expect(resource, created)
        return word

    async def _apply(self, action: ApplyObject) -> str:
        """Applies an object, and once more with another digest if the one it has isn't that of what the server keeps: defaults, mostly."""
        resource, body = BY_KIND[action.body["kind"]], action.body
        uid = action.uid
        if uid is None:
            try:
                applied = await self._client.apply_new(resource, body)
            except ConflictError:  # the name is taken
                uid = (await self._existing(resource, body))["metadata"]["uid"]
        if uid is not None:
            applied = await self._client.apply(resource, _with_metadata(body, uid=uid))
        annotations = dict(body["metadata"].get("annotations") or {})
        live = content_digest({**applied, "kind": resource.kind})
        if annotations.get(ANNOTATION_LIVE_HASH, live) != live:
            annotations[ANNOTATION_LIVE_HASH] = live
            marked = _with_metadata(body, uid=applied["metadata"]["uid"], annotations=annotations)
            applied = await self._client.apply(resource, marked)
        self._expect(resource, applied)
        return "done"

    async def _patch_metadata(self, action: PatchMetadata) -> str:
        resource = BY_KIND[action.kind]
        patch = {"metadata": {**action.metadata, "uid": action.uid}}
        try:
            patched = await self._client.patch(resource, self._namespace, action.name, patch, STRATEGIC_MERGE_PATCH)
        except NotFoundError:
            return "gone"
        self._expect(resource, patched)
        return "done"

    async def _delete(self, action: DeleteObject) -> str:
        resource, key = BY_KIND[action.kind], key_of({"kind": action.kind, "metadata": self._named(action.name)})
        if resource is SECRET:  # Secrets aren't watched: what is to be deleted counts as gone at once.
            self._cache.remove(key, 0)
        try:
            deleted = await self._client.delete(
                resource, self._namespace, action.name, action.uid, action.grace_seconds
            )
        except (NotFoundError, ConflictError):
            return "gone"
        if resource is not SECRET:
            # The object as it was or as it lingers; for some kinds only a Status.
            version = version_of(deleted) if deleted.get("kind") == action.kind else 0
            self.expectations.append(Expectation(key, version, deleted_uid=action.uid))
        return "done"

    async def _resize(self, action: ResizePod) -> str:
        resources = {"limits": {"cpu": action.cpu_limit}, "requests": {"cpu": action.cpu_request}}
        patch = {
            "metadata": {"resourceVersion": action.version},
            "spec": {"containers": [{"name": action.container, "resources": resources}]},
        }
        try:
            resized = await self._client.patch(
                POD, self._namespace, action.name, patch, STRATEGIC_MERGE_PATCH, subresource="resize"
            )
        except NotFoundError:
            return "gone"
        self._expect(POD, resized)
        return "done"

    async def _emit(self, action: EmitEvent) -> str:
        if self._observed.job is None:
            return "gone"
        await self._events.record(self._observed.job, action)
        return "done"

    async def _publish(self, status: Object, manager: str) -> str:
        job = self._observed.job
        if job is None:
            return "gone"
        metadata = self._named(self._observed.key.name) | {"resourceVersion": job["metadata"]["resourceVersion"]}
        body = {
            "apiVersion": RL_JOB.api_version,
            "kind": RL_JOB.kind,
            "metadata": metadata,
            "status": status,
        }
        published = await self._client.apply(RL_JOB, body, subresource="status", manager=manager)
        if manager == FIELD_MANAGER:
            self.published = published
        self._expect(RL_JOB, published)
        return "done"

    def _named(self, name: str) -> dict[str, Any]:
        return {"namespace": self._namespace, "name": name}

    async def _existing(self, resource: Resource, body: Object) -> dict[str, Any]:
        """Reads the object that has the name already. NotOursError: it isn't the job's."""
        existing = {
            **await self._client.get(resource, self._namespace, body["metadata"]["name"]),
            "kind": resource.kind,
        }
        self._check_ours(existing)
        return existing

    def _check_ours(self, existing: Object) -> None:
        job = (self._observed.job or {}).get("metadata", {})
        if belongs_to(existing, job.get("uid", "")):
            if (
                existing["kind"] == POD.kind
                and (existing["metadata"].get("labels") or {}).get(LABEL_JOB) != job["name"]
            ):
                raise NotOursError(f"Pod {existing['metadata']['name']} {WITHOUT_ITS_LABEL} {LABEL_JOB}")
            return
        whose = OF_SOMETHING_ELSE
        if belongs_to_earlier(existing, self._observed.key.name, job.get("uid", "")):
            whose = OF_AN_EARLIER_JOB
        raise NotOursError(f"{existing['kind']} {existing['metadata']['name']} {whose}")

    def _expect(self, resource: Resource, written: Mapping[str, Any]) -> None:
        self.expectations.append(Expectation(key_of({**written, "kind": resource.kind}), version_of(written)))


def _with_metadata(body: Object, **metadata: Any) -> dict[str, Any]:
    return {**body, "metadata": {**body["metadata"], **metadata}}
