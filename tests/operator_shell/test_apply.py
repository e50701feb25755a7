"""What a plan's actions mean for each other when the server says no, or nothing. Single writes: see test_writes_live."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from longboat_operator.apply import Applied, Applier
from longboat_operator.dry_runs import KEPT_SECONDS, AcceptedDryRuns
from longboat_operator.kube.clock import ServerClock
from longboat_operator.kube.errors import (
    AlreadyExistsError,
    ConflictError,
    ForbiddenError,
    InvalidError,
    KubeError,
    NotFoundError,
    ServerError,
    TransportError,
)
from longboat_operator.kube.events import EventRecorder
from longboat_operator.kube.resources import Resource
from longboat_operator.model import (
    FIELD_MANAGER,
    GRANT_FIELD_MANAGER,
    ApplyObject,
    CreateObject,
    DeleteObject,
    EmitEvent,
    JobKey,
    Observed,
    PatchMetadata,
    Plan,
    PublishGrant,
    PublishStatus,
    ResizePod,
    content_digest,
)
from longboat_operator.rejections import (
    LASTING_SECONDS,
    OF_AN_EARLIER_JOB,
    OF_SOMETHING_ELSE,
    UNANSWERED,
    Rejections,
)
from longboat_operator.watch.cache import Cache, ObjectKey
from longboat_operator.watch.expectations import Expectation
from tests.operator_shell.test_rejections import Clock

KEY = JobKey("a", "x")
JOB = {
    "apiVersion": "longboat.dev/v1alpha1",
    "kind": "RLJob",
    "metadata": {"namespace": "a", "name": "x", "uid": "u", "resourceVersion": "5"},
}

STARTED: dict[str, Any] = {**JOB, "status": {"startTime": "2026-01-01T00:00:00Z"}}


class Server:
    """Notes every write; answers some with an error."""

    def __init__(self) -> None:
        self.writes: list[str] = []
        self.managers: list[str] = []
        self.errors: dict[str, KubeError] = {}
        self.bodies: list[Any] = []
        self.patches: list[Any] = []
        self.defaults: dict[str, Any] = {}
        self.objects: dict[str, Any] = {}
        self.reads: list[str] = []
        self.patched: Callable[[], Awaitable[Any]] = lambda: asyncio.sleep(0)

    async def create(self, resource: Resource, body: Any, *, dry_run: bool = False) -> dict[str, Any]:
        return self._answer(("dry " if dry_run else "create ") + self._name(resource, body), body)

    async def apply(
        self,
        resource: Resource,
        body: Any,
        *,
        subresource: str | None = None,
        force: bool = True,
        manager: str = FIELD_MANAGER,
    ) -> Any:
        self.managers.append(manager)
        return self._answer(f"apply {self._name(resource, body)}" + (f"/{subresource}" if subresource else ""), body)

    async def apply_new(self, resource: Resource, body: Any) -> Any:
        return self._answer(f"make {self._name(resource, body)}", body)

    async def get(self, resource: Resource, namespace: str, name: str) -> Any:
        self.reads.append(name)
        if isinstance(self.objects[name], Exception):
            raise self.objects[name]
        return self.objects[name]

    async def delete(self, resource: Resource, namespace: str, name: str, uid: str, grace: int | None) -> Any:
        return self._answer(f"delete {resource.kind} {name}", {"kind": "Status"})

    async def patch(
        self, resource: Resource, namespace: str, name: str, body: Any, *_: Any, subresource: str = "patch"
    ) -> Any:
        self.patches.append(body)
        await self.patched()
        metadata = {"namespace": namespace, "name": name, "resourceVersion": "9"}
        return self._answer(f"{subresource} {name}", {"metadata": metadata})

    def _name(self, resource: Resource, body: Any) -> str:
        return f"{resource.kind} {body['metadata'].get('name')}" if resource.kind != "Event" else "Event"

    def _answer(self, write: str, body: Any) -> dict[str, Any]:
        self.writes.append(write)
        self.bodies.append(body)
        if write in self.errors:
            raise self.errors[write]
        return {**body, **self.defaults, "metadata": {"uid": "new", **body.get("metadata", {}), "resourceVersion": "9"}}


class Bench:
    """A server, a clock, and one job's rejections."""

    def __init__(self) -> None:
        self.server = Server()
        self.clock = Clock()
        self.rejections = Rejections(self.clock)
        self.cache = Cache()
        self.cache.put(JOB)
        client: Any = self.server
        recorder = EventRecorder(client, ServerClock(), "me")
        self.applier = Applier(client, self.cache, recorder, AcceptedDryRuns(self.clock))

    async def apply(self, *actions: Any) -> Applied:
        self.server.writes.clear()
        return await self.applier.apply(Plan(tuple(actions)), Observed(KEY, JOB), self.rejections)


@pytest.fixture
def bench() -> Bench:
    return Bench()


def of(kind: str, name: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": kind, "metadata": {"namespace": "a", "name": name}}


SERVICE = ApplyObject(of("Service", "x"))
ACCOUNT = CreateObject(of("ServiceAccount", "x"))
PODS = [CreateObject(of("Pod", f"p{n}")) for n in range(3)]
DRY = [CreateObject(of("Pod", f"p{n}"), dry_run=f"shape {n}") for n in range(2)]
DELETE = DeleteObject("Pod", "old", "u1")
STATUS = PublishStatus({"phase": "Running"})
EVENT = EmitEvent("Normal", "Started", "it started")
REJECTED = ForbiddenError(403, "Forbidden", "exceeded quota")


RESIZE = ResizePod("p9", "graders", "2", "2", "7")
NEWER_JOB = (Expectation(ObjectKey("RLJob", "a", "x"), 6),)


@pytest.mark.parametrize("now", [None, {"uid": "other"}, {"uid": "u", "deletionTimestamp": "2026-01-01T00:00:00Z"}])
async def test_nothing_is_made_for_a_job_that_is_gone_already(bench: Bench, now: dict[str, Any] | None) -> None:
    """The deletion of its children may be seen first."""
    bench.server.objects["x"] = {"metadata": now} if now else NotFoundError(404, "NotFound", "no such job")
    applied = await bench.applier.apply(
        Plan((DELETE, SERVICE, *PODS, STATUS, EVENT)), Observed(KEY, STARTED), bench.rejections
    )
    assert bench.server.writes == ["delete Pod old"]
    assert applied.newer == NEWER_JOB


@pytest.mark.parametrize("deleted", [True, False])
async def test_a_plan_ends_once_the_cache_shows_that_its_job_goes(bench: Bench, deleted: bool) -> None:
    async def goes(*_: Any, **__: Any) -> Any:
        if deleted:
            bench.cache.remove(ObjectKey("RLJob", "a", "x"), 6)
        else:
            going = {"resourceVersion": "6", "deletionTimestamp": "2026-01-01T00:00:00Z"}
            bench.cache.put({**JOB, "metadata": {**JOB["metadata"], **going}})
        return {"kind": "Status"}

    bench.server.delete = goes  # type: ignore[method-assign]
    applied = await bench.apply(ACCOUNT, DELETE, SERVICE, *PODS, STATUS)
    assert bench.server.writes == ["create ServiceAccount x"]
    assert applied.newer == NEWER_JOB


async def test_a_job_that_goes_on_is_asked_for_once(bench: Bench) -> None:
    bench.server.objects["x"] = JOB
    await bench.applier.apply(Plan((SERVICE, *PODS)), Observed(KEY, STARTED), bench.rejections)
    assert bench.server.writes == ["make Service x", *(f"create Pod p{n}" for n in range(3))]
    assert bench.server.reads == ["x"]


async def test_another_secret_soon_after_the_last_waits_whatever_its_name(bench: Bench) -> None:
    """It is created because the last one's name was taken, or because its creation had no answer."""
    bench.server.errors["create Secret s0"] = AlreadyExistsError(409, "AlreadyExists", "it already exists")
    await bench.apply(CreateObject(of("Secret", "s0")), PODS[0])
    await bench.apply(CreateObject(of("Secret", "s1")), PODS[0], STATUS)
    assert bench.server.writes == ["apply RLJob x/status"]
    wait = bench.rejections.next_seconds()
    assert wait
    bench.clock.now += wait
    await bench.apply(CreateObject(of("Secret", "s1")), PODS[0])
    assert bench.server.writes == ["create Secret s1", "create Pod p0"]
    assert bench.rejections.next_seconds() is None


async def test_a_resize_is_of_one_version_of_the_pod_and_sets_request_and_limit(bench: Bench) -> None:
    await bench.apply(RESIZE)
    assert bench.server.patches == [
        {
            "metadata": {"resourceVersion": "7"},
            "spec": {
                "containers": [{"name": "graders", "resources": {"limits": {"cpu": "2"}, "requests": {"cpu": "2"}}}]
            },
        }
    ]


async def test_a_pod_that_has_changed_is_planned_again_and_was_not_refused(bench: Bench) -> None:
    bench.server.errors["resize p9"] = ConflictError(409, "Conflict", "the object has been modified")
    applied = await bench.apply(STATUS, RESIZE, ResizePod("p8", "graders", "1", "1", "5"), EVENT)
    assert applied.newer == (Expectation(ObjectKey("Pod", "a", "p9"), 8),)
    assert bench.rejections.by_name() == {}
    assert bench.server.writes == ["apply RLJob x/status", "resize p9", "resize p8", "create Event"]


async def test_a_refused_resize_is_kept_for_the_next_plan(bench: Bench) -> None:
    bench.server.errors["resize p9"] = REJECTED
    applied = await bench.apply(RESIZE)
    assert applied.newer == ()
    assert bench.rejections.by_name() == {"p9": "Pod p9: exceeded quota"}


async def test_resizes_do_not_wait_for_each_other(bench: Bench) -> None:
    bench.server.patched = asyncio.Barrier(2).wait
    applied = await bench.apply(STATUS, RESIZE, ResizePod("p8", "graders", "1", "1", "5"), EVENT)
    assert sorted(bench.server.writes[1:3]) == ["resize p8", "resize p9"]
    assert bench.server.writes[3] == "create Event"
    assert len(applied.expectations) == 3


async def test_a_resize_without_an_answer_keeps_no_event_from_being_sent(bench: Bench) -> None:
    bench.server.errors["resize p9"] = error = TransportError("no answer")
    applied = await bench.apply(STATUS, RESIZE, ResizePod("p8", "graders", "1", "1", "5"), EVENT)
    assert applied.unanswered is error
    assert bench.server.writes == ["apply RLJob x/status", "resize p9", "resize p8", "create Event"]


async def test_nothing_is_resized_that_the_status_could_not_tell_of(bench: Bench) -> None:
    bench.server.errors["apply RLJob x/status"] = ConflictError(409, "Conflict", "the job has changed")
    applied = await bench.apply(STATUS, RESIZE)
    assert applied.newer == NEWER_JOB
    assert bench.server.writes == ["apply RLJob x/status"]


async def test_actions_are_done_in_order(bench: Bench) -> None:
    applied = await bench.apply(SERVICE, *PODS[:2], DELETE, STATUS, RESIZE, EVENT)
    assert bench.server.writes == [
        "make Service x",
        "create Pod p0",
        "create Pod p1",
        "delete Pod old",
        "apply RLJob x/status",
        "resize p9",
        "create Event",
    ]
    assert applied.unanswered is None
    assert applied.newer == ()
    assert [e.deleted_uid for e in applied.expectations if e.key.name == "old"] == ["u1"]
    assert [(e.key.kind, e.key.name, e.version) for e in applied.expectations] == [
        ("Service", "x", 9),
        ("Pod", "p0", 9),
        ("Pod", "p1", 9),
        ("Pod", "old", 0),
        ("RLJob", "x", 9),
        ("Pod", "p9", 9),
    ]


async def test_a_rejected_pod_stops_no_other(bench: Bench) -> None:
    bench.server.errors["create Pod p0"] = REJECTED
    applied = await bench.apply(*PODS, STATUS)
    assert bench.server.writes == ["create Pod p0", "create Pod p1", "create Pod p2", "apply RLJob x/status"]
    assert applied.unanswered is None
    assert bench.rejections.by_name() == {"p0": "Pod p0: exceeded quota"}


async def test_a_rejected_prerequisite_stops_what_may_stand_on_it(bench: Bench) -> None:
    bench.server.errors["create ServiceAccount x"] = REJECTED
    await bench.apply(SERVICE, ACCOUNT, *PODS, DELETE, STATUS)
    assert bench.server.writes == [
        "make Service x",
        "create ServiceAccount x",
        "delete Pod old",
        "apply RLJob x/status",
    ]


async def test_a_rejected_write_isnt_repeated_before_its_time(bench: Bench) -> None:
    bench.server.errors["create ServiceAccount x"] = REJECTED
    await bench.apply(ACCOUNT, *PODS, STATUS)
    await bench.apply(ACCOUNT, *PODS, STATUS)
    assert bench.server.writes == ["apply RLJob x/status"]
    assert set(bench.rejections.by_name()) == {"x"}
    bench.clock.now += bench.rejections.next_seconds() or 0.0
    bench.server.errors.clear()
    await bench.apply(ACCOUNT, PODS[0])
    assert bench.server.writes == ["create ServiceAccount x", "create Pod p0"]
    assert bench.rejections.by_name() == {}


async def test_dry_runs_come_together_before_the_first_real_create(bench: Bench) -> None:
    await bench.apply(SERVICE, *DRY, PODS[2])
    assert bench.server.writes == [
        "make Service x",
        "dry Pod p0",
        "dry Pod p1",
        "create Pod p0",
        "create Pod p1",
        "create Pod p2",
    ]


async def test_one_rejected_dry_run_creates_nothing(bench: Bench) -> None:
    bench.server.errors["dry Pod p1"] = InvalidError(422, "Invalid", "spec.containers: Required value")
    await bench.apply(SERVICE, *DRY, PODS[2], DELETE, STATUS, EVENT)
    assert bench.server.writes == [
        "make Service x",
        "dry Pod p0",
        "dry Pod p1",
        "delete Pod old",
        "apply RLJob x/status",
        "create Event",
    ]
    assert bench.rejections.by_name() == {"p1": "Pod p1: spec.containers: Required value"}
    await bench.apply(*DRY, PODS[2], STATUS)  # and again nothing while it waits, but the status
    assert bench.server.writes == ["dry Pod p0", "apply RLJob x/status"]


async def test_a_dry_run_of_an_accepted_shape_isnt_made_again_for_an_hour(bench: Bench) -> None:
    again = [CreateObject(of("Pod", "q0"), dry_run="shape 0"), CreateObject(of("Pod", "q1"), dry_run="shape 2")]
    await bench.apply(*DRY)
    await bench.apply(*again)
    assert bench.server.writes == ["dry Pod q1", "create Pod q0", "create Pod q1"]
    bench.clock.now += KEPT_SECONDS
    await bench.apply(*again)
    assert bench.server.writes == ["dry Pod q0", "dry Pod q1", "create Pod q0", "create Pod q1"]


@pytest.mark.parametrize("refused", ["dry Pod p9", "create Pod p9"])
async def test_a_refused_create_makes_dry_runs_necessary_again_in_its_namespace_alone(
    bench: Bench, refused: str
) -> None:
    job: Any = {**JOB, "metadata": {**JOB["metadata"], "namespace": "b"}}
    bench.cache.put(job)
    other = Observed(JobKey("b", "x"), job)
    accepted = Plan((DRY[0],))
    await bench.apply(*DRY)
    await bench.applier.apply(accepted, other, bench.rejections)
    bench.server.errors[refused] = REJECTED
    await bench.apply(CreateObject(of("Pod", "p9"), dry_run="shape 9"))
    await bench.apply(DRY[0])
    assert bench.server.writes == ["dry Pod p0", "create Pod p0"]
    bench.server.writes.clear()
    await bench.applier.apply(accepted, other, bench.rejections)
    assert bench.server.writes == ["create Pod p0"]


def test_accepted_dry_runs_of_namespaces_that_are_gone_are_forgotten() -> None:
    now = 0.0
    accepted = AcceptedDryRuns(lambda: now)
    accepted.note("gone", "shape")
    now = KEPT_SECONDS
    accepted.note("b", "shape")
    assert accepted.has("b", "shape")
    assert list(accepted._until) == ["b"]


async def test_after_a_dry_run_without_an_answer_only_the_status_is_written(bench: Bench) -> None:
    bench.server.errors["dry Pod p0"] = error = TransportError("no answer")
    applied = await bench.apply(*DRY, STATUS)
    assert applied.unanswered is error
    assert bench.server.writes == ["dry Pod p0", "dry Pod p1", "apply RLJob x/status"]
    bench.server.errors.clear()
    await bench.apply(*DRY)
    assert bench.server.writes == ["dry Pod p0", "create Pod p0", "create Pod p1"]


async def test_a_dry_run_doesnt_mind_that_the_name_is_taken(bench: Bench) -> None:
    bench.server.errors["dry Pod p0"] = AlreadyExistsError(409, "AlreadyExists", "there is one")
    await bench.apply(DRY[0])
    assert bench.server.writes == ["dry Pod p0", "create Pod p0"]


@pytest.mark.parametrize("error", [TransportError("no answer"), ServerError(503, "ServiceUnavailable", "away")])
async def test_after_a_write_without_an_answer_only_the_status_and_its_events_are_written(
    bench: Bench, error: KubeError
) -> None:
    bench.server.errors["create Pod p1"] = error
    applied = await bench.apply(*PODS, DELETE, STATUS, RESIZE, EVENT)
    assert bench.server.writes == ["create Pod p0", "create Pod p1", "apply RLJob x/status", "create Event"]
    assert applied.unanswered is error
    assert bench.rejections.by_name() == {}
    assert [e.key.name for e in applied.expectations] == ["p0", "x"]  # what was done is still waited for
    assert applied.published


DOWN = 'Internal error occurred: failed calling webhook "pods.example.com": connection refused'


@pytest.mark.parametrize("write", ["create Pod p1", "dry Pod p1"])
async def test_a_write_that_fails_for_long_is_told_and_then_holds_up_no_other(bench: Bench, write: str) -> None:
    actions = [DRY[0], CreateObject(DRY[1].body, dry_run="shape 1"), DELETE, STATUS]
    bench.server.errors[write] = ServerError(500, "InternalError", DOWN)
    await bench.apply(*actions)
    bench.clock.now += LASTING_SECONDS - 1
    await bench.apply(*actions)
    assert bench.rejections.by_name() == {}
    bench.clock.now += 1
    assert bench.rejections.by_name() == {"p1": f"Pod p1: {UNANSWERED}: {DOWN}"}
    await bench.apply(*actions)
    wait = bench.rejections.next_seconds()
    assert wait
    await bench.apply(*actions)
    assert bench.server.writes[-2:] == ["delete Pod old", "apply RLJob x/status"]
    bench.server.errors.clear()
    bench.clock.now += wait
    await bench.apply(*actions)
    assert bench.rejections.by_name() == {}
    assert "create Pod p1" in bench.server.writes
    assert bench.rejections.next_seconds() is None


async def test_a_server_that_does_not_answer_at_all_is_asked_for_nothing_more_than_the_status(bench: Bench) -> None:
    gone = TransportError("no answer")
    bench.server.errors = {"create Pod p0": gone, "apply RLJob x/status": gone}
    applied = await bench.apply(*PODS, STATUS, EVENT)
    assert bench.server.writes == ["create Pod p0", "apply RLJob x/status"]
    assert applied.unanswered is gone
    assert applied.published is None


async def test_a_status_against_an_old_job_ends_the_plan_without_its_events(bench: Bench) -> None:
    bench.server.errors["apply RLJob x/status"] = ConflictError(409, "Conflict", "changed meanwhile")
    applied = await bench.apply(STATUS, EVENT)
    assert bench.server.writes == ["apply RLJob x/status"]
    assert applied.newer == NEWER_JOB
    assert bench.rejections.by_name() == {}


async def test_a_status_is_guarded_by_the_version_that_was_observed(bench: Bench) -> None:
    await bench.apply(STATUS)
    assert bench.server.bodies[-1]["metadata"] == {"namespace": "a", "name": "x", "resourceVersion": "5"}


async def test_a_grant_is_written_alone_by_a_manager_of_its_own(bench: Bench) -> None:
    grant = {"rollout": {"replicas": 2}}
    for written, status in ((grant, {"allocation": {"grant": grant}}), (None, {})):
        applied = await bench.apply(PublishGrant(written))
        assert (bench.server.writes, bench.server.managers.pop()) == (["apply RLJob x/status"], GRANT_FIELD_MANAGER)
        body = bench.server.bodies[-1]
        assert body["metadata"] == {"namespace": "a", "name": "x", "resourceVersion": "5"}
        assert body["status"] == status
        assert [expected.version for expected in applied.expectations] == [9]
    bench.server.errors["apply RLJob x/status"] = ConflictError(409, "Conflict", "changed meanwhile")
    assert (await bench.apply(PublishGrant(grant))).newer == NEWER_JOB


async def test_an_event_that_cant_be_written_harms_nothing(bench: Bench) -> None:
    bench.server.errors["create Event"] = REJECTED
    applied = await bench.apply(EVENT, STATUS)
    assert applied.unanswered is None
    assert bench.server.writes == ["create Event", "apply RLJob x/status"]


async def test_a_secrets_value_is_made_here_and_kept_nowhere(bench: Bench) -> None:
    body = {**of("Secret", "x-token"), "immutable": True}
    body["metadata"]["labels"] = {"longboat.dev/job": "x"}
    await bench.apply(CreateObject(body, random_key="token"))
    token = bench.server.bodies[-1]["stringData"]["token"]
    assert len(token) == 64
    assert int(token, 16)
    assert "stringData" not in body
    held = bench.cache.children(KEY)["Secret"]["x-token"]
    assert token not in str(held)


async def test_a_secret_that_is_there_already_is_rejected_since_nobody_can_tell_whose_it_is(bench: Bench) -> None:
    bench.server.errors["create Secret x-token"] = AlreadyExistsError(409, "AlreadyExists", "secrets already exists")
    await bench.apply(CreateObject(of("Secret", "x-token"), random_key="token"), *PODS)
    assert bench.server.writes == ["create Secret x-token"]
    assert "already exists" in bench.rejections.by_name()["x-token"]
    assert not bench.cache.children(KEY)["Secret"]


async def test_a_first_apply_makes_and_a_later_one_is_forced_onto_the_object_of_the_uid(bench: Bench) -> None:
    await bench.apply(SERVICE)
    assert bench.server.writes == ["make Service x"]
    await bench.apply(ApplyObject(SERVICE.body, uid="u9"))
    assert bench.server.writes == ["apply Service x"]
    assert bench.server.bodies[-1]["metadata"]["uid"] == "u9"


async def test_what_the_server_makes_of_an_object_is_noted_on_it(bench: Bench) -> None:
    """So that only what changes afterwards is a change by hand."""
    body = {**of("Service", "x"), "spec": {"clusterIP": "None"}}
    body["metadata"]["annotations"] = {"longboat.dev/live-hash": content_digest(body)}
    await bench.apply(ApplyObject(body))
    assert bench.server.writes == ["make Service x"], "it keeps what was asked for"
    bench.server.defaults = {"spec": {"clusterIP": "None", "sessionAffinity": "None"}}
    applied = await bench.apply(ApplyObject(body))
    assert bench.server.writes == ["make Service x", "apply Service x"]
    noted = bench.server.bodies[-1]["metadata"]
    assert noted["annotations"]["longboat.dev/live-hash"] == content_digest({**body, **bench.server.defaults})
    assert noted["uid"] == "new"
    assert len(applied.expectations) == 1


TAKEN = ConflictError(409, "Conflict", "the object has been modified")


def held(kind: str, name: str, *, uid: str, **metadata: Any) -> dict[str, Any]:
    owner = {"kind": "RLJob", "name": "x", "uid": uid}
    obj = of(kind, name)
    return {**obj, "metadata": {**obj["metadata"], "uid": "u9", "ownerReferences": [owner], **metadata}}


async def test_a_first_apply_to_what_is_the_jobs_already_is_forced_onto_it(bench: Bench) -> None:
    bench.server.errors["make Service x"] = TAKEN
    bench.server.objects["x"] = held("Service", "x", uid="u")
    await bench.apply(SERVICE, PODS[0])
    assert bench.server.writes == ["make Service x", "apply Service x", "create Pod p0"]
    assert bench.server.bodies[1]["metadata"]["uid"] == "u9"
    assert bench.rejections.by_name() == {}


async def test_a_first_apply_to_what_is_not_the_jobs_is_rejected(bench: Bench) -> None:
    bench.server.errors["make Service x"] = TAKEN
    bench.server.objects["x"] = held("Service", "x", uid="another", ownerReferences=[])
    await bench.apply(SERVICE, PODS[0])
    assert bench.server.writes == ["make Service x"]
    assert bench.rejections.by_name()["x"] == f"Service x: Service x {OF_SOMETHING_ELSE}"


async def test_a_claim_of_the_job_that_lacks_its_labels_gets_them_back(bench: Bench) -> None:
    claim = of("PersistentVolumeClaim", "c")
    claim["metadata"]["labels"] = {"longboat.dev/job": "x"}
    bench.server.errors["create PersistentVolumeClaim c"] = AlreadyExistsError(409, "AlreadyExists", "there is one")
    bench.server.objects["c"] = held("PersistentVolumeClaim", "c", uid="u", labels={"theirs": "too"})
    applied = await bench.apply(CreateObject(claim))
    assert bench.server.writes == ["create PersistentVolumeClaim c", "patch c"]
    assert bench.server.patches == [{"metadata": {"uid": "u9", "labels": {"longboat.dev/job": "x"}}}]
    assert [expected.version for expected in applied.expectations] == [9]


async def test_metadata_is_patched_on_the_object_of_the_uid_alone(bench: Bench) -> None:
    await bench.apply(PatchMetadata("PersistentVolumeClaim", "c", "u9", {"labels": {"a": "b"}}))
    assert bench.server.writes == ["patch c"]
    assert bench.server.patches == [{"metadata": {"labels": {"a": "b"}, "uid": "u9"}}]


@pytest.mark.parametrize(
    ("owner", "whose"),
    [
        ({"kind": "RLJob", "name": "x", "uid": "before"}, OF_AN_EARLIER_JOB),
        ({"kind": "RLJob", "name": "y", "uid": "another"}, OF_SOMETHING_ELSE),
    ],
)
async def test_what_belongs_to_something_else_is_left_alone(bench: Bench, owner: dict[str, str], whose: str) -> None:
    foreign = of("Pod", "p0")
    foreign["metadata"]["ownerReferences"] = [owner]
    bench.server.objects["p0"] = foreign
    bench.server.errors["create Pod p0"] = AlreadyExistsError(409, "AlreadyExists", "there is one")
    await bench.apply(PODS[0], STATUS)
    assert bench.server.writes == ["create Pod p0", "apply RLJob x/status"]
    assert bench.rejections.by_name()["p0"] == f"Pod p0: Pod p0 {whose}"


async def test_any_prefix_of_a_plan_may_be_all_that_happens() -> None:
    """No answer to each action in turn: all before it was done, and after it nothing but the status and events, which follow the status."""
    actions = [SERVICE, ACCOUNT, *PODS, DELETE, STATUS, EVENT]
    well = Bench()
    await well.apply(*actions)
    for cut, write in enumerate(well.server.writes):
        bench = Bench()
        bench.server.errors = {write: TransportError("gone")}
        assert (await bench.apply(*actions)).unanswered is not None
        told = [other for other in well.server.writes[cut + 1 :] if other.endswith(("status", "Event"))]
        silent = write.endswith(("status", "Event"))
        assert bench.server.writes == [*well.server.writes[: cut + 1], *([] if silent else told)]
