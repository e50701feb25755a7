"""What the API server is asked about names that no watch shows, and what its answers mean."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from longboat_operator.kube.client import Page
from longboat_operator.kube.clock import ServerClock
from longboat_operator.kube.errors import (
    AlreadyExistsError,
    ForbiddenError,
    KubeError,
    NotFoundError,
    ServerError,
    TransportError,
)
from longboat_operator.kube.resources import Resource
from longboat_operator.lookups import LookUps
from longboat_operator.model import DEFAULT_ACCOUNT, JobKey, Observed, Target, content_digest
from longboat_operator.pod_warnings import KEPT_SECONDS, PodWarnings
from longboat_operator.rejections import LASTING_SECONDS, UNANSWERED, Rejections

PODS = {
    name: {"kind": "Pod", "metadata": {"name": name, "uid": uid}}
    for name, uid in zip("pqr", ("u1", "u2", "u3"), strict=True)
}
OBSERVED = Observed(JobKey("a", "x"), None, {"Pod": PODS})
WARNINGS = "list Event a type=Warning,involvedObject.kind=Pod"
ACCOUNT: Target = ("ServiceAccount", "x-driver")
SECRET: Target = ("Secret", "x-ray-token-1")


def warning(uid: str, name: str, message: str, **times: Any) -> dict[str, Any]:
    """An Event about the pod of this uid."""
    about = {"kind": "Pod", "uid": uid}
    return {"metadata": {"name": name}, "involvedObject": about, "reason": "FailedMount", "message": message, **times}


class Server:
    """Answers with what it has, or with an error."""

    def __init__(self) -> None:
        self.objects: dict[str, Any] = {}
        self.events: list[dict[str, Any]] = []
        self.error: KubeError | None = None
        self.asked: list[str] = []
        self.release = asyncio.Event()
        self.release.set()

    async def get(self, resource: Resource, namespace: str, name: str) -> dict[str, Any]:
        self._ask(f"get {resource.kind} {namespace}/{name}")
        if name not in self.objects:
            raise NotFoundError(404, "NotFound", "not found")
        return dict(self.objects[name])

    async def create(self, resource: Resource, body: Any, *, dry_run: bool) -> dict[str, Any]:
        assert dry_run
        assert set(body) == {"apiVersion", "kind", "metadata"}
        self._ask(f"dry {resource.kind} {body['metadata']['namespace']}/{body['metadata']['name']}")
        return dict(body)

    async def list_pages(self, resource: Resource, namespace: str, *, fields: str) -> AsyncIterator[Page]:
        await self.release.wait()
        self._ask(f"list {resource.kind} {namespace} {fields}")
        yield Page(self.events[:1], "1")
        yield Page(self.events[1:], "1")

    def _ask(self, text: str) -> None:
        self.asked.append(text)
        if self.error:
            raise self.error


class Bench:
    def __init__(self) -> None:
        self.now = 0.0
        self.server = Server()
        self.rejections = Rejections(lambda: self.now)
        client: Any = self.server
        self.clock = ServerClock(lambda: 0.0)
        self.look_ups = LookUps(client, PodWarnings(client, lambda: self.now), self.clock, lambda: self.now)

    async def ask(self, *targets: Target) -> Any:
        return await self.look_ups.answers(targets, OBSERVED, self.rejections)


@pytest.fixture
def bench() -> Bench:
    return Bench()


async def test_an_object_is_read_and_kept_as_the_cache_keeps_it(bench: Bench) -> None:
    account = {"apiVersion": "v1", "metadata": {"namespace": "a", "name": "x-driver", "uid": "u", "managedFields": [1]}}
    bench.server.objects["x-driver"] = account
    found = (await bench.ask(ACCOUNT))[ACCOUNT]
    assert bench.server.asked == ["get ServiceAccount a/x-driver"]
    assert found["metadata"] == {"namespace": "a", "name": "x-driver", "uid": "u"}
    assert found["digest"] == content_digest({"kind": "ServiceAccount", **account})


async def test_a_look_at_the_account_default_serves_the_jobs_of_a_minute(bench: Bench) -> None:
    bench.server.objects["default"] = {"apiVersion": "v1", "metadata": {"namespace": "a", "name": "default"}}
    first = await bench.ask(DEFAULT_ACCOUNT)
    assert first[DEFAULT_ACCOUNT]["metadata"]["name"] == "default"
    bench.now += KEPT_SECONDS - 1
    assert await bench.ask(DEFAULT_ACCOUNT) == first
    assert bench.server.asked == ["get ServiceAccount a/default"]
    bench.now += 1
    await bench.ask(DEFAULT_ACCOUNT)
    assert len(bench.server.asked) == 2


async def test_what_the_node_of_a_pod_takes_for_the_time_does_not_count(bench: Bench) -> None:
    ready = {"type": "Ready", "status": "False", "lastTransitionTime": "2026-01-01T00:00:00Z"}
    bench.server.objects["p"] = {"apiVersion": "v1", **PODS["p"], "status": {"conditions": [ready]}}
    bench.clock.note("Thu, 01 Jan 2026 01:00:00 GMT")
    [found] = (await bench.ask(("Pod", "p"))).values()
    assert found["status"]["conditions"][0]["lastTransitionTime"] == "2026-01-01T01:00:00.000Z"


async def test_nothing_there_is_an_answer(bench: Bench) -> None:
    assert await bench.ask(ACCOUNT) == {ACCOUNT: None}


async def test_a_secret_is_never_read(bench: Bench) -> None:
    assert await bench.ask(SECRET) == {SECRET: None}, "it would be created: there is none"
    bench.server.error = AlreadyExistsError(409, "AlreadyExists", "secrets already exists")
    assert (await bench.ask(SECRET))[SECRET]["metadata"]["name"] == SECRET[1]
    assert bench.server.asked == ["dry Secret a/x-ray-token-1"] * 2


async def test_a_secret_that_a_quota_rejects_counts_as_there(bench: Bench) -> None:
    """Whether it is can't be told; to take it for lost would end all pods of the job."""
    bench.server.error = ForbiddenError(403, "Forbidden", "exceeded quota: secrets")
    assert (await bench.ask(SECRET))[SECRET] is not None
    bench.server.error = ServerError(503, "ServiceUnavailable", "away")
    with pytest.raises(ServerError):
        await bench.ask(SECRET)


async def test_the_newest_warning_about_a_pod_is_found(bench: Bench) -> None:
    def event(name: str, message: str, **times: Any) -> dict[str, Any]:
        return warning("u1", name, message, **times)

    bench.server.events = [
        event("old", "first", lastTimestamp="2026-01-01T00:00:01Z"),
        event("series", "third", series={"lastObservedTime": "2026-01-01T00:00:03Z"}),
        event("new", "second", eventTime="2026-01-01T00:00:02Z"),
    ]
    found = await bench.ask(("Event", "p"))
    newest = found["Event", "p"]
    assert (newest["kind"], newest["reason"], newest["message"]) == ("Event", "FailedMount", "third")
    assert bench.server.asked == [WARNINGS]


async def test_warnings_of_a_namespace_are_asked_for_once_a_minute(bench: Bench) -> None:
    bench.server.events = [warning("u1", "e1", "of p"), warning("u2", "e2", "of q")]
    bench.server.release.clear()
    asking = [asyncio.create_task(bench.ask(("Event", name))) for name in ("p", "q", "p")]
    await asyncio.sleep(0)
    bench.server.release.set()
    answers = [next(iter(answer.values()))["message"] for answer in await asyncio.gather(*asking)]
    assert answers == ["of p", "of q", "of p"]
    bench.server.events = []
    bench.now += KEPT_SECONDS - 1
    assert (await bench.ask(("Event", "q")))["Event", "q"]["message"] == "of q"
    assert (await bench.ask(("Event", "r"))) == {("Event", "r"): None}, "not warned about when the list was made"
    assert bench.server.asked == [WARNINGS]
    bench.now += 1
    assert await bench.ask(("Event", "q")) == {("Event", "q"): None}
    assert bench.server.asked == [WARNINGS] * 2


async def test_refused_warnings_are_not_asked_for_again_within_the_minute_and_lost_ones_are(bench: Bench) -> None:
    bench.server.error = TransportError("timed out")
    with pytest.raises(TransportError):
        await bench.ask(("Event", "p"))
    bench.server.error = ForbiddenError(403, "Forbidden", "no right to list")
    assert await bench.ask(("Event", "p")) == {}
    assert await bench.ask(("Event", "q")) == {}
    assert bench.server.asked == [WARNINGS] * 2
    assert bench.rejections.by_name() == {"p": "Event p: no right to list", "q": "Event q: no right to list"}


async def test_only_the_newest_warnings_of_a_huge_namespace_are_kept(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("longboat_operator.pod_warnings.MOST_PODS", 2)
    bench.server.events = [
        warning("u1", "e1", "of p", lastTimestamp="2026-01-01T00:00:01Z"),
        warning("u2", "e2", "of q", lastTimestamp="2026-01-01T00:00:03Z"),
        warning("u3", "e3", "of r", lastTimestamp="2026-01-01T00:00:02Z"),
    ]
    told = await bench.ask(("Event", "p"), ("Event", "q"), ("Event", "r"))
    assert [told["Event", name] and told["Event", name]["message"] for name in "pqr"] == [None, "of q", "of r"]


async def test_what_is_rejected_is_told_and_not_asked_before_its_time(bench: Bench) -> None:
    bench.server.error = ForbiddenError(403, "Forbidden", "no right to get")
    assert await bench.ask(ACCOUNT) == {}
    assert bench.rejections.by_name() == {"x-driver": "ServiceAccount x-driver: no right to get"}
    assert await bench.ask(ACCOUNT) == {}
    assert len(bench.server.asked) == 1
    bench.server.error = None
    bench.now += bench.rejections.next_seconds() or 0.0
    assert await bench.ask(ACCOUNT) == {ACCOUNT: None}


async def test_no_answer_is_raised(bench: Bench) -> None:
    bench.server.error = TransportError("timed out")
    with pytest.raises(TransportError):
        await bench.ask(ACCOUNT)


async def test_what_the_server_has_long_not_told_is_left_out_so_that_the_plan_says_so(bench: Bench) -> None:
    bench.server.error = ServerError(500, "InternalError", "etcd is away")
    with pytest.raises(ServerError):
        await bench.ask(ACCOUNT)
    bench.now = LASTING_SECONDS
    assert await bench.ask(ACCOUNT) == {}
    assert bench.rejections.by_name() == {"x-driver": f"ServiceAccount x-driver: {UNANSWERED}: etcd is away"}
    assert bench.rejections.next_seconds()
    bench.server.asked.clear()
    assert await bench.ask(ACCOUNT) == {}
    assert bench.server.asked == [], "it isn't asked for before its time"
