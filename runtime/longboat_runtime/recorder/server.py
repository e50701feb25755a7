"""The recorder's server: an OpenAI-compatible endpoint on loopback, with a URL and a secret for each launch of a sample."""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http import HTTPStatus

from aiohttp import web
from aiohttp.typedefs import Handler

from longboat_crds.environments import MAX_EPISODES_PER_POD
from longboat_runtime.recorder import answers
from longboat_runtime.recorder.contexts import Contexts
from longboat_runtime.recorder.parameters import read_request
from longboat_runtime.recorder.record import Call, Launch, Record, Recording
from longboat_runtime.recorder.refusals import Refused
from longboat_runtime.turns import TurnRequest, Turns

# Passes of the event loop in which the end of a connection that has arrived is read, the connection closed, and its handler cancelled.
_PASSES_TO_CLOSE = 4


@dataclass(frozen=True, slots=True)
class Bounds:
    """Bounds of the server. `requests` may be open at once for a launch, each with a body of at most `body_bytes`.

    A stream gets a comment every `comment_seconds` while its turn is drawn.
    """

    requests: int = 64
    body_bytes: int = 32 * 2**20
    comment_seconds: float = 15.0


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where and by which secret the launch of a sample reaches the model: a base URL and an API key of OpenAI's clients."""

    number: int
    url: str
    secret: str = field(repr=False)
    model: str


@dataclass(frozen=True, slots=True)
class Played:
    """What a launch has recorded, and its seconds in the environment: those in which no request of it was open."""

    recording: Recording
    environment_seconds: float


class _Served:
    """A launch that is served: its record, the turns that are drawn, and the seconds in which no request is open."""

    def __init__(self, launch: Launch, contexts: Contexts, secret: str) -> None:
        self.record, self.secret = Record(launch, contexts), secret
        self.drawing: dict[Call, asyncio.Task[None]] = {}
        loop = asyncio.get_running_loop()
        self.ended: asyncio.Future[None] = loop.create_future()
        self.failure: asyncio.Future[Exception] = loop.create_future()
        self.requests, self._seconds, self._since = 0, 0.0, time.monotonic()

    @contextmanager
    def request(self) -> Iterator[None]:
        if not self.requests:
            self._seconds += time.monotonic() - self._since
        self.requests += 1
        try:
            yield
        finally:
            self.requests -= 1
            if not self.requests:
                self._since = time.monotonic()

    @property
    def environment_seconds(self) -> float:
        return self._seconds + (0.0 if self.requests else time.monotonic() - self._since)


class Recorder:
    """Serves `model` to launches, whose turns `turns` draws. Raises OSError on `start` if there is no port."""

    def __init__(self, turns: Turns, contexts: Contexts, model: str, bounds: Bounds) -> None:
        self._turns, self._contexts, self._model, self._bounds = turns, contexts, model, bounds
        self._launches: dict[int, _Served] = {}
        self._next, self._port = 0, 0
        application = web.Application(middlewares=[_errors], client_max_size=bounds.body_bytes)
        application.router.add_get("/{launch:[0-9]{1,18}}/v1/models", self._models)
        application.router.add_post("/{launch:[0-9]{1,18}}/v1/chat/completions", self._chat)
        # A handler is cancelled when its connection closes: that is how an answer is known not to be delivered.
        self._runner = web.AppRunner(application, handler_cancellation=True, access_log=None, shutdown_timeout=1.0)

    async def start(self) -> None:
        await self._runner.setup()
        # All episodes may connect at once. The kernel drops what is too many, and clients try again a second later.
        site = web.TCPSite(self._runner, "127.0.0.1", 0, backlog=MAX_EPISODES_PER_POD)
        await site.start()
        self._port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        """Ends all launches and closes all connections."""
        for number in list(self._launches):
            self._end(number)
        await self._runner.cleanup()

    def open(self, launch: Launch) -> Endpoint:
        """Begins to serve a launch."""
        number, self._next = self._next, self._next + 1
        secret = secrets.token_urlsafe(32)
        self._launches[number] = _Served(launch, self._contexts, secret)
        return Endpoint(number, f"http://127.0.0.1:{self._port}/{number}/v1", secret, self._model)

    def environment_seconds(self, endpoint: Endpoint) -> float:
        """Returns the seconds so far in which no request of a launch was open. Raises KeyError if it has ended."""
        return self._launches[endpoint.number].environment_seconds

    def close(self, endpoint: Endpoint) -> Played:
        """Ends a launch: turns that are drawn are cancelled, and its requests are answered with 410. Raises KeyError if it has ended."""
        return self._end(endpoint.number)

    async def failure(self, endpoint: Endpoint) -> Exception:
        """Waits until a turn of a launch can't be drawn (`Turns.turn`), and returns why. The client waits until the launch is closed.

        Raises KeyError if the launch has ended.
        """
        return await asyncio.shield(self._launches[endpoint.number].failure)

    def _end(self, number: int) -> Played:
        served = self._launches.pop(number)
        played = Played(served.record.recording(), served.environment_seconds)
        for task in served.drawing.values():
            task.cancel()
        served.ended.set_result(None)
        return played

    def _served(self, http: web.Request) -> _Served:
        """Returns the launch that a request is of. Raises Refused."""
        number = int(http.match_info["launch"])
        served = self._launches.get(number)
        if served is None and number < self._next:
            raise _gone()
        secret = http.headers.get("Authorization", "").removeprefix("Bearer ")
        if served is None or not secrets.compare_digest(secret.encode(errors="replace"), served.secret.encode()):
            raise Refused(
                "The API key isn't that of this URL. Use the URL and the key that the episode was given.",
                code="invalid_api_key",
                status=HTTPStatus.UNAUTHORIZED,
            )
        return served

    async def _models(self, http: web.Request) -> web.StreamResponse:
        limits = self._served(http).record.launch.limits
        return _json(answers.models(self._model, limits.context))

    async def _chat(self, http: web.Request) -> web.StreamResponse:
        served = self._served(http)
        if served.requests >= self._bounds.requests:
            raise Refused(
                f"The episode has {served.requests} open requests, which is as many as there may be. Send fewer at once.",
                code="rate_limit_exceeded",
                status=HTTPStatus.TOO_MANY_REQUESTS,
            )
        with served.request():
            body = await http.read()
            # So that a connection which the client has given up is known when its retry comes.
            await _take_in_closed()
            if served.ended.done():
                raise _gone()
            call = self._begin(served, http, body)
            try:
                answer = await self._send(served, call, http)
            except ConnectionError:
                served.record.close(call)
                return web.Response()  # to nobody
            except BaseException:
                served.record.close(call)
                raise
            served.record.deliver(call)
            return answer

    def _begin(self, served: _Served, http: web.Request, body: bytes) -> Call:
        launch = served.record.launch
        try:
            value = json.loads(body)
        except (ValueError, RecursionError) as error:
            raise Refused(f"The body is no JSON: {error}.", code="invalid_json") from error
        request = read_request(value, self._model, launch.sampling, launch.arguments, served.record.messages)
        retries = http.headers.get("x-stainless-retry-count", "0")
        call, turn = served.record.begin(body, request, retries not in ("", "0"))
        if turn is not None:
            task = asyncio.create_task(self._draw(served, call, turn))
            served.drawing[call] = task
            task.add_done_callback(lambda _: served.drawing.pop(call))
        return call

    async def _draw(self, served: _Served, call: Call, turn: TurnRequest) -> None:
        begun = time.monotonic()
        try:
            reply = await self._turns.turn(turn)
            served.record.complete(call, reply, time.monotonic() - begun)
        except Exception as error:  # noqa: BLE001 - the episode can't be played on: its owner is told
            if not served.failure.done():
                served.failure.set_result(error)
            await asyncio.wait({served.ended})

    async def _send(self, served: _Served, call: Call, http: web.Request) -> web.StreamResponse:
        """Waits for the turn and sends the answer. Returns when the system has all of it; raises if the connection closes before."""
        assert http.transport is not None
        # So that writing waits until the system has taken everything.
        http.transport.set_write_buffer_limits(0)
        stream = None
        if call.request.stream:
            headers = {"Content-Type": "text/event-stream; charset=utf-8", "Cache-Control": "no-cache"}
            stream = web.StreamResponse(headers=headers)
            await stream.prepare(http)
        await self._wait(served, call, stream)
        await _take_in_closed()
        refusal = _gone() if served.ended.done() else call.refusal
        if refusal is not None:
            if stream is None:
                return await _sent(_refusal(refusal), http)
            return await _sent(stream, http, answers.event(refusal.body))
        assert call.reply is not None
        texts = self._contexts.token_texts(call.drawn.tolist()) if call.request.logprobs else []
        parts = (call, call.reply, self._model, int(time.time()), texts)
        if stream is None:
            return await _sent(_json(answers.completion(*parts)), http)
        return await _sent(stream, http, b"".join(map(answers.event, answers.chunks(*parts))) + answers.DONE)

    async def _wait(self, served: _Served, call: Call, stream: web.StreamResponse | None) -> None:
        """Waits until the turn is drawn or its launch has ended; a stream gets comments meanwhile."""
        if (task := served.drawing.get(call)) is None:
            return
        seconds, first = None if stream is None else self._bounds.comment_seconds, asyncio.FIRST_COMPLETED
        while not (await asyncio.wait({task, served.ended}, timeout=seconds, return_when=first))[0]:
            if stream is not None:
                await stream.write(answers.COMMENT)


async def _take_in_closed() -> None:
    """Lets the event loop take in which connections have been closed."""
    for _ in range(_PASSES_TO_CLOSE):
        await asyncio.sleep(0)


async def _sent(answer: web.StreamResponse, http: web.Request, rest: bytes = b"") -> web.StreamResponse:
    """Sends the rest of an answer. Raises ConnectionResetError if the connection closes before the system has all of it."""
    await answer.prepare(http)
    await answer.write_eof(rest)
    if http.transport is None or http.transport.is_closing():
        raise ConnectionResetError("closed while the answer was written")
    return answer


def _gone() -> Refused:
    return Refused("The episode has ended.", code="episode_ended", status=HTTPStatus.GONE)


def _json(data: object, status: int = HTTPStatus.OK) -> web.Response:
    return web.Response(body=answers.encoded(data), status=status, content_type="application/json")


def _refusal(refusal: Refused) -> web.Response:
    return _json(refusal.body, refusal.status)


@web.middleware
async def _errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Answers errors in the form that clients of OpenAI read."""
    try:
        return await handler(request)
    except Refused as error:
        return _refusal(error)
    except web.HTTPRequestEntityTooLarge as error:
        text, code = f"The body is too large: {error.text}.", "request_too_large"
        return _refusal(Refused(text, code=code, status=HTTPStatus.REQUEST_ENTITY_TOO_LARGE))
    except web.HTTPException as error:
        text = f"{request.method} {request.path} isn't served: there are /v1/models and /v1/chat/completions."
        return _refusal(Refused(text, code="not_found", status=HTTPStatus(error.status)))
