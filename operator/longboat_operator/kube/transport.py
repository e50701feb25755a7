"""HTTP to the API server: authentication, time limits, counting, errors. Bodies are plain dicts."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlencode

import aiohttp
from kubernetes.aio.client.configuration import Configuration
from kubernetes.aio.client.rest import RESTClientObject
from pydantic_core import from_json
from yarl import URL

from longboat_crds.yaml_text import json_in_yaml
from longboat_operator.kube.clock import ServerClock
from longboat_operator.kube.config import ConfigurationError
from longboat_operator.kube.errors import QuietError, TransportError, error_from_response
from longboat_operator.kube.resources import BY_KIND
from longboat_operator.metrics import API_REQUESTS
from longboat_operator.model import REQUEST_TIMEOUT_SECONDS

# The server may take this long to answer (its own --request-timeout). Only writes are bound to the lease.
LIST_TIMEOUT_SECONDS = 60.0
# A server that sends bookmarks does so about every minute: after a longer silence the connection may be dead.
WATCH_SILENCE_SECONDS = 90.0

_USER_AGENT = "longboat-operator"
_JSON = "application/json"
_PLURALS = frozenset(resource.plural for resource in BY_KIND.values())
# aiohttp's messages contain the TLS context's representation, which means nothing to people.
_TLS_CONTEXT = re.compile(r" ssl:(<[^>]*>|\S+)")
_SILENCE = (aiohttp.ClientError, OSError, TimeoutError)


@dataclass(frozen=True, slots=True)
class Request:
    """One request. `verb` and `resource` (plural, with subresource) are Kubernetes' words, for counting.

    `timeout_seconds`: for the whole exchange; None: the transport's.
    """

    method: str
    path: str
    verb: str
    resource: str
    query: Mapping[str, str] = field(default_factory=dict)
    body: Any = None
    content_type: str = _JSON
    accept: str = _JSON
    timeout_seconds: float | None = None

    def encoded(self) -> bytes | None:
        """Returns the body as bytes of its content type."""
        if self.body is None:
            return None
        return json_in_yaml(self.body) if self.content_type.endswith("yaml") else go_json(self.body).encode()


class Transport:
    """Sends requests with the credentials and the proxy of a `Configuration`. One per process; `close` it at the end.

    `server_clock` follows all answers, also those to sessions.
    """

    def __init__(self, configuration: Configuration, timeout_seconds: float = REQUEST_TIMEOUT_SECONDS) -> None:
        """Reads the certificates; nothing is sent yet.

        Raises:
            ConfigurationError: they can't be read.
        """
        self.configuration = configuration
        self.timeout_seconds = timeout_seconds
        self.server_clock = ServerClock()
        self._session: aiohttp.ClientSession | None = None
        try:
            self._ssl = RESTClientObject(configuration).ssl_context
        except OSError as error:  # such as ssl.SSLError
            message = (
                f"can't read the certificates for the API server: {error}; correct certificate-authority, client-certificate and "
                "client-key in the kubeconfig or, in a pod, ca.crt of its service account"
            )
            raise ConfigurationError(message) from error

    async def send(self, request: Request) -> dict[str, Any]:
        """Sends a request and returns the answer's JSON.

        Raises:
            ApiError: the server said no.
            TransportError: no readable answer came within the time limit, or the connection failed.
        """
        limits = aiohttp.ClientTimeout(
            total=request.timeout_seconds or self.timeout_seconds, sock_connect=self.timeout_seconds
        )
        async with self._exchange(request, limits) as response:
            body: dict[str, Any] = _json(await response.read())
            return body

    @asynccontextmanager
    async def stream(self, request: Request) -> AsyncIterator[AsyncIterator[dict[str, Any]]]:
        """Opens a stream: yields an iterator over the answer's lines as JSON, as they come, until the server ends it.

        Raises:
            ApiError: the server said no.
            TransportError: the connection failed or broke, or a line can't be read.
            QuietError: the open stream was silent for `WATCH_SILENCE_SECONDS`.
        """
        limits = aiohttp.ClientTimeout(total=None, sock_connect=self.timeout_seconds, sock_read=WATCH_SILENCE_SECONDS)
        async with self._exchange(request, limits) as response:
            try:
                yield _json_lines(response)
            except aiohttp.SocketTimeoutError as error:
                raise QuietError(f"{request.verb} {request.resource}: silent") from error

    def session(self, answered: Callable[[int], None] = lambda _: None) -> aiohttp.ClientSession:
        """Opens a session with the same credentials and proxy, for a library that sets its own time limits. Answers are counted.

        `answered` is called with the HTTP status of each answer.
        """

        async def authenticate(
            request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType
        ) -> aiohttp.ClientResponse:
            request.headers.update(await self._authorization())
            response = await handler(request)
            self.server_clock.note(response.headers.get("Date"))
            API_REQUESTS.labels(*_verb_and_resource(request.url), str(response.status)).inc()
            answered(response.status)
            return response

        return self._open(authenticate)

    async def close(self) -> None:
        """Ends all connections but those of sessions that it has opened for others."""
        if self._session is not None:
            await self._session.close()

    def _open(self, *middlewares: aiohttp.ClientMiddlewareType) -> aiohttp.ClientSession:
        """Opens a session without a limit of connections, since each watch holds one."""
        return aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, ssl=self._ssl),
            proxy=self.configuration.proxy,
            middlewares=middlewares,
            headers={"User-Agent": _USER_AGENT},
            json_serialize=go_json,
        )

    async def _authorization(self) -> dict[str, str]:
        token = await self.configuration.get_api_key_with_prefix("BearerToken")
        return {"Authorization": token} if token else {}

    @asynccontextmanager
    async def _exchange(self, request: Request, limits: aiohttp.ClientTimeout) -> AsyncIterator[aiohttp.ClientResponse]:
        """Sends a request and yields the response, which is released after the block.

        The request is counted at most once, as soon as its status is known or it has failed. Raises ApiError for a status of 400 or more,
        and TransportError if the connection fails, in the block too.
        """
        url = self.configuration.host + request.path
        if request.query:
            url += "?" + urlencode(request.query)
        try:
            headers = {
                "Accept": request.accept,
                "Content-Type": request.content_type,
                **await self._authorization(),
            }
            self._session = self._session or self._open()
            response = await self._session.request(
                request.method,
                url,
                headers=headers,
                data=request.encoded(),
                timeout=limits,
                server_hostname=self.configuration.tls_server_name,
                proxy_headers=self.configuration.proxy_headers,
            )
        except _SILENCE as error:
            API_REQUESTS.labels(request.verb, request.resource, "<error>").inc()
            raise _no_answer(request, error) from error
        self.server_clock.note(response.headers.get("Date"))
        API_REQUESTS.labels(request.verb, request.resource, str(response.status)).inc()
        try:
            async with response:
                if response.status >= 400:
                    raise error_from_response(
                        response.status, await response.read(), response.headers.get("Retry-After")
                    )
                yield response
        except _SILENCE as error:
            raise _no_answer(request, error) from error


def go_json(value: Any) -> str:
    """Writes JSON as Go does: compact, with sorted keys, and with `&`, `<`, `>`, U+2028 and U+2029 escaped.

    The API server stores a ControllerRevision's data byte for byte, and compares it with Go's encoding on every update. If they differ, it
    refuses even a new label, since data is immutable.
    """
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return text.translate(_ESCAPED)


_ESCAPED = {code: f"\\u{code:04x}" for code in (*b"&<>", 0x2028, 0x2029)}


def _verb_and_resource(url: URL) -> tuple[str, str]:
    """Names the verb and resource of a watch, a list or a discovery request that another library has built."""
    if "watch" in url.query:
        return "watch", url.name
    return ("list", url.name) if url.name in _PLURALS else ("get", "apis")


def _no_answer(request: Request, error: Exception) -> TransportError:
    words = _TLS_CONTEXT.sub("", str(error)) or type(error).__name__
    return TransportError(f"{request.verb} {request.resource}: no answer: {words}")


def _json(text: bytes) -> Any:
    """Parses JSON. Raises ClientPayloadError if the text isn't JSON, as when it was cut off."""
    try:
        return from_json(text)
    except ValueError as error:
        raise aiohttp.ClientPayloadError(str(error)) from error


async def _json_lines(response: aiohttp.ClientResponse) -> AsyncIterator[dict[str, Any]]:
    """Yields the JSON of each line that isn't empty. Lines are cut by hand: aiohttp's own reader gives up on one longer than its buffer."""
    rest = b""
    async for chunk in response.content.iter_any():
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            if line:
                yield _json(line)
    if rest:
        yield _json(rest)
