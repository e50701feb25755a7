"""What no well-behaved API server does on demand: silence, long lines, half answers, "come again later"."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from kubernetes.aio.client.configuration import Configuration
from structlog.testing import capture_logs

from longboat_operator.kube import errors, resources, transport
from longboat_operator.kube.client import KubeClient
from longboat_operator.kube.clock import ServerClock
from longboat_operator.kube.resources import RL_JOB
from longboat_operator.lease import Leadership, LeadershipLostError
from longboat_operator.metrics import API_REQUESTS
from longboat_operator.watch.cache import Cache, Source
from longboat_operator.watch.feed import Feed
from longboat_operator.watch.freshness import SILENCE_SECONDS, Freshness
from longboat_operator.watch.informer import Informer
from tests.support.loop_time import pass_time
from tests.support.ports import free_port
from tests.support.waiting import DEADLINE_SECONDS, eventually_async

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
Serve = Callable[[Handler], Awaitable[transport.Transport]]


@pytest.fixture
async def serve() -> AsyncIterator[Serve]:
    """Starts a server that answers everything by one handler; gives a transport to it."""
    ends: list[Callable[[], Awaitable[None]]] = []

    async def start(handler: Handler) -> transport.Transport:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", handler)
        server = TestServer(app)
        await server.start_server()
        configuration = Configuration(host=str(server.make_url("/")).rstrip("/"))
        configuration.api_key["BearerToken"] = "Bearer first"
        made = transport.Transport(configuration, DEADLINE_SECONDS)
        ends.extend((made.close, server.close))
        return made

    yield start
    for end in ends:
        await end()


def ungated(made: transport.Transport) -> KubeClient:
    return KubeClient(made, lambda: None)


def requests(verb: str, resource: str, code: str) -> float:
    return API_REQUESTS.labels(verb, resource, code)._value.get()


async def test_no_answer_in_time_is_no_rejection(serve: Serve) -> None:
    release = asyncio.Event()

    async def hang(_: web.Request) -> web.Response:
        await release.wait()
        return web.Response()

    before = requests("get", "pods", "<error>")
    made = await serve(hang)
    made.timeout_seconds = 0.2
    with pytest.raises(errors.TransportError, match="get pods"):
        await ungated(made).get(resources.POD, "a", "x")
    assert requests("get", "pods", "<error>") == before + 1
    release.set()


async def test_half_an_answer_is_no_answer(serve: Serve) -> None:
    async def cut(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Length": "100"})
        await response.prepare(request)
        await response.write(b'{"kind":')
        assert request.transport is not None
        request.transport.close()
        return response

    with pytest.raises(errors.TransportError):
        await ungated(await serve(cut)).get(resources.POD, "a", "x")


async def test_come_again_later_says_when(serve: Serve) -> None:
    async def busy(_: web.Request) -> web.Response:
        return web.json_response(
            {"kind": "Status", "code": 429, "message": "too many requests"}, status=429, headers={"Retry-After": "7"}
        )

    with pytest.raises(errors.TooManyRequestsError) as caught:
        await ungated(await serve(busy)).get(resources.POD, "a", "x")
    assert caught.value.retry_after_seconds == 7.0


async def test_credentials_are_read_for_every_request(serve: Serve) -> None:
    seen: list[str | None] = []

    async def answer(request: web.Request) -> web.Response:
        seen.append(request.headers.get("Authorization"))
        return web.json_response({})

    made = await serve(answer)
    await ungated(made).get(resources.POD, "a", "x")
    made.configuration.api_key["BearerToken"] = "Bearer second"
    await ungated(made).get(resources.POD, "a", "x")
    before = requests("watch", "rljobs", "200")
    async with (
        made.session() as session,
        session.get(made.configuration.host + RL_JOB.path() + "?watch=true") as response,
    ):
        assert response.status == 200
    assert requests("watch", "rljobs", "200") == before + 1
    assert seen == ["Bearer first", "Bearer second", "Bearer second"]


@pytest.mark.parametrize("status", [200, 404, 503])
async def test_every_answer_tells_the_servers_time(serve: Serve, status: int) -> None:
    """Those to a session for a library too. The server's clock is hours ahead of this machine's, more with each answer."""
    dates = [datetime.now(UTC).replace(microsecond=0) + timedelta(hours=hours) for hours in (1, 2)]
    coming = iter(dates)

    async def answer(_: web.Request) -> web.Response:
        return web.json_response({}, status=status, headers={"Date": format_datetime(next(coming), usegmt=True)})

    made = await serve(answer)
    with suppress(errors.ApiError):
        await ungated(made).get(RL_JOB, "a", "x")
    assert dates[0] <= made.server_clock.now() < dates[1]
    async with made.session() as session, session.get(made.configuration.host):
        assert dates[1] <= made.server_clock.now()


async def test_the_proxy_of_a_kubeconfig_is_used_for_all_requests(serve: Serve) -> None:
    async def who(request: web.Request) -> web.Response:
        return web.json_response({"asked for": str(request.url.host)})

    proxy = await serve(who)
    made = transport.Transport(Configuration(host="http://api.invalid", proxy=proxy.configuration.host))
    try:
        assert await ungated(made).get(resources.POD, "a", "x") == {"asked for": "api.invalid"}
        async with made.session() as session, session.get(made.configuration.host + RL_JOB.path()) as response:
            assert await response.json() == {"asked for": "api.invalid"}
    finally:
        await made.close()


@pytest.mark.parametrize("exempt", ["", "10.96.0.0/12"])
async def test_no_proxy_of_the_environment_stands_between(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, exempt: str
) -> None:
    """Whoever loads a kubeconfig decides on that; in a pod there is none."""

    async def answer(request: web.Request) -> web.Response:
        return web.json_response({"answered": request.path})

    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{free_port()}")
    monkeypatch.setenv("no_proxy", exempt)
    made = await serve(answer)
    assert await ungated(made).get(resources.POD, "a", "x") == {"answered": "/api/v1/namespaces/a/pods/x"}
    async with made.session() as session, session.get(made.configuration.host + RL_JOB.path()) as response:
        assert await response.json() == {"answered": RL_JOB.path()}


async def test_a_watch_takes_lines_of_any_length_in_pieces_of_any_size(serve: Serve) -> None:
    big = "x" * 5_000_000

    async def stream(request: web.Request) -> web.StreamResponse:
        assert request.query["allowWatchBookmarks"] == "true"
        assert request.query["labelSelector"] == "longboat.dev/job"
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b'{"type":"ADDED","object":{"metadata":{"name":"' + big.encode() + b'"}}}\n{"type":')
        await response.write(b'"BOOKMARK","object":{"metadata":{}}}\n')
        return response

    async with ungated(await serve(stream)).watch(resources.POD, None, "longboat.dev/job", "1") as watch:
        events: list[Any] = [event async for event in watch]
    assert [event.type for event in events] == ["ADDED", "BOOKMARK"]
    assert len(events[0].object["metadata"]["name"]) == len(big)


async def drain(made: transport.Transport, seconds: float = 0.0) -> None:
    """Watches until the stream ends; `seconds` pass once it is open."""
    async with ungated(made).watch(resources.POD, None, "", "1") as events:
        pass_time(seconds)
        async for _ in events:
            pass


async def test_a_list_may_take_longer_than_a_write(serve: Serve) -> None:
    asked, given_up = asyncio.Event(), asyncio.Event()

    async def slow(request: web.Request) -> web.Response:
        if request.path.endswith("/first"):
            return web.json_response({})
        asked.set()
        await given_up.wait()
        return web.json_response({"metadata": {"resourceVersion": "9"}, "items": []})

    made = await serve(slow)
    await ungated(made).get(resources.POD, "a", "first")  # the list will use the same connection
    made.timeout_seconds = 0.2
    listing = asyncio.ensure_future(anext(ungated(made).list_pages(resources.POD, None, metadata_only=True)))
    await asked.wait()  # so that its time began before that of the write
    with pytest.raises(errors.TransportError):
        await ungated(made).create(resources.POD, {"metadata": {"namespace": "a", "name": "x"}})
    given_up.set()
    assert (await listing).resource_version == "9"


async def test_a_silent_watch_is_given_up(serve: Serve) -> None:
    release = asyncio.Event()

    async def silent(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await release.wait()
        return response

    with pytest.raises(errors.QuietError):
        await drain(await serve(silent), seconds=transport.WATCH_SILENCE_SECONDS)
    release.set()


async def test_a_quiet_watch_goes_on_without_a_word(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    pods = Source("Pod", None)
    now, watched, heard, release = 0.0, [], asyncio.Queue[int](), asyncio.Event()

    async def quiet(request: web.Request) -> web.StreamResponse:
        if "watch" not in request.query:
            return web.json_response({"metadata": {"resourceVersion": "9"}, "items": []})
        watched.append(request.query["resourceVersion"])
        response = web.StreamResponse()
        await response.prepare(request)
        await release.wait()
        return response

    freshness = Freshness([pods], bookmarked=[pods])
    feed = Feed(Cache(), freshness, ServerClock(), lambda _: None, clock=lambda: now)
    hear = feed.heard

    def noted(source: Source, version: int) -> None:
        hear(source, version)
        heard.put_nowait(version)

    monkeypatch.setattr(feed, "heard", noted)
    informer = Informer(ungated(await serve(quiet)), resources.POD, None, "", feed, asyncio.Semaphore())
    with capture_logs() as logs:
        task = asyncio.create_task(informer.run())
        await heard.get()  # the list
        for _ in range(3):
            await heard.get()  # a watch, which stays silent
            now += SILENCE_SECONDS  # in total, far longer than a dead watch may be silent
            pass_time(transport.WATCH_SILENCE_SECONDS)
        await heard.get()
    task.cancel()
    release.set()
    assert watched == ["9", "9", "9", "9"]  # each resumes where the one before stopped
    assert [entry for entry in logs if entry["log_level"] != "debug"] == []
    assert freshness.problems(now) == []


async def test_informers_list_no_more_sources_at_once_than_they_share(serve: Serve) -> None:
    """The first lists of hundreds of namespaces would be a burst."""
    listing: set[str] = set()
    most = 0

    async def answer(request: web.Request) -> web.Response:
        nonlocal most
        if "watch" in request.query:
            return web.Response()
        listing.add(request.path)
        most = max(most, len(listing))
        for _ in range(100):  # others could come meanwhile
            await asyncio.sleep(0)
        listing.remove(request.path)
        return web.json_response({"metadata": {"resourceVersion": "9"}, "items": []})

    sources = [Source("Pod", f"namespace-{number}") for number in range(9)]
    freshness = Freshness(sources, bookmarked=sources)
    feed = Feed(Cache(), freshness, ServerClock(), lambda _: None)
    client, lists = ungated(await serve(answer)), asyncio.Semaphore(2)
    informers = [Informer(client, resources.POD, source.namespace, "", feed, lists) for source in sources]
    tasks = [asyncio.create_task(informer.run()) for informer in informers]
    await eventually_async(lambda: not freshness.unlisted)
    for task in tasks:
        task.cancel()
    assert most == 2


async def test_too_old_a_version_is_told_in_either_form(serve: Serve) -> None:
    status = {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old resource version"}

    async def in_stream(_: web.Request) -> web.Response:
        return web.json_response({"type": "ERROR", "object": status})

    async def as_answer(_: web.Request) -> web.Response:
        return web.json_response(status, status=410)

    for handler in (in_stream, as_answer):
        with pytest.raises(errors.GoneError):
            await drain(await serve(handler))


async def test_a_list_is_read_in_pages(serve: Serve) -> None:
    async def pages(request: web.Request) -> web.Response:
        assert request.query["limit"] == "500"
        if "continue" not in request.query:
            return web.json_response({"metadata": {"resourceVersion": "9", "continue": "more"}, "items": [{"n": 1}]})
        assert request.query["continue"] == "more"
        return web.json_response({"metadata": {"resourceVersion": "9", "continue": ""}, "items": None})

    found = [page async for page in ungated(await serve(pages)).list_pages(resources.POD, None)]
    assert [(page.items, page.resource_version) for page in found] == [([{"n": 1}], "9"), ([], "9")]


async def test_without_leadership_no_write_leaves_the_process(serve: Serve) -> None:
    seen: list[str] = []

    async def answer(request: web.Request) -> web.Response:
        seen.append(request.method)
        return web.json_response({})

    now = 0.0
    leadership = Leadership(write_seconds=9.0, clock=lambda: now)
    client = KubeClient(await serve(answer), leadership.check)
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"namespace": "a", "name": "x"}}
    writes: list[Callable[[], Awaitable[Any]]] = [
        lambda: client.create(resources.POD, pod),
        lambda: client.apply(resources.POD, pod),
        lambda: client.replace(resources.POD, pod),
        lambda: client.patch(resources.POD, "a", "x", {}, "application/merge-patch+json"),
        lambda: client.delete(resources.POD, "a", "x", "uid"),
    ]
    leadership.renewed(0.0)
    for write in writes:
        await write()
    assert seen == ["POST", "PATCH", "PUT", "PATCH", "DELETE"]
    now = 60.0  # the machine was suspended
    for write in writes:
        with pytest.raises(LeadershipLostError):
            await write()
    assert len(seen) == 5
    await client.get(resources.POD, "a", "x")


async def test_only_so_many_requests_are_in_flight_and_the_right_to_write_is_asked_when_one_is_sent(
    serve: Serve,
) -> None:
    under_way: set[str] = set()
    answers = asyncio.Event()

    async def answer(request: web.Request) -> web.Response:
        under_way.add(request.path)
        await answers.wait()
        return web.json_response({})

    now = 0.0
    leadership = Leadership(write_seconds=9.0, clock=lambda: now)
    leadership.renewed(0.0)
    client = KubeClient(await serve(answer), leadership.check, in_flight=2)
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"namespace": "a", "name": "x"}}
    reads = [asyncio.create_task(client.get(resources.POD, "a", name)) for name in ("p0", "p1", "p2")]
    write = asyncio.create_task(client.create(resources.POD, pod))
    await eventually_async(lambda: len(under_way) == 2)
    stream = asyncio.create_task(opened(client))
    await eventually_async(lambda: any("/b/" in path for path in under_way))
    assert len(under_way) == 3
    now = 60.0
    answers.set()
    await asyncio.gather(*reads)
    with pytest.raises(LeadershipLostError):
        await write
    assert len(under_way) == 4
    await stream


async def opened(client: KubeClient) -> None:
    async with client.watch(resources.POD, "b", "", "1"):
        return
