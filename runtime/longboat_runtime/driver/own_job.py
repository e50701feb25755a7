"""The driver's own RLJob on the API server: gets it, watches it and applies its status, as plain dicts. Never lists.

No proxy is used: those that the environment names are for what lies outside the cluster, such as trackers.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import Any
from urllib.parse import urlencode

import aiohttp
from kubernetes.aio.client.configuration import Configuration
from kubernetes.aio.client.rest import RESTClientObject

from longboat_crds.base import API_VERSION, GROUP, VERSION
from longboat_crds.yaml_text import json_in_yaml

FIELD_MANAGER = "longboat-driver"
REQUEST_TIMEOUT = 15.0
# The server sends a bookmark about every minute: silence for longer than this means that the connection is dead.
_WATCH_SILENCE = 90.0
_WATCH_SECONDS = 300
_NO_ANSWER = (aiohttp.ClientError, OSError, TimeoutError, json.JSONDecodeError)


class NoAnswer(Exception):
    """The API server could not be reached, or gave no readable answer in time."""


class Rejected(Exception):
    """The API server rejected the request. `code` is the HTTP status."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code


class OwnJob:
    """One RLJob. Every method but `close` raises NoAnswer or Rejected."""

    def __init__(self, configuration: Configuration, namespace: str, name: str) -> None:
        self.namespace, self.name = namespace, name
        self._configuration = configuration
        configuration.proxy, configuration.client_session_kwargs = None, {"trust_env": False}
        self._rest = RESTClientObject(configuration)
        self._jobs = f"/apis/{GROUP}/{VERSION}/namespaces/{namespace}/rljobs"

    async def get(self) -> dict[str, Any]:
        """Reads the job as it is."""
        return await self._send("GET", f"{self._jobs}/{self.name}")

    async def watch(self, resource_version: str | None) -> AsyncIterator[tuple[str, dict[str, Any]]]:
        """Yields changes after `resource_version`, and bookmarks, as (type, job), until the server ends the stream after some minutes.

        Without a version the first is the job as it is. Raises Rejected with code 410 if that version is too old; get the job again.
        """
        query = {
            "watch": "true",
            "fieldSelector": f"metadata.name={self.name}",
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(_WATCH_SECONDS),
        }
        if resource_version is not None:
            query["resourceVersion"] = resource_version
        limits = aiohttp.ClientTimeout(total=None, sock_connect=REQUEST_TIMEOUT, sock_read=_WATCH_SILENCE)
        rest = b""
        async with self._exchange("GET", f"{self._jobs}?{urlencode(query)}", limits) as response:
            async for chunk in response.content.iter_any():
                *lines, rest = (rest + chunk).split(b"\n")
                for line in filter(None, lines):
                    event = json.loads(line)
                    if event["type"] == "ERROR":
                        raise Rejected(int(event["object"].get("code", 500)), event["object"].get("message", ""))
                    yield event["type"], event["object"]

    async def apply_status(self, status: Mapping[str, Any]) -> dict[str, Any]:
        """Applies the driver's part of status, server-side: a field that is left out is removed. Returns the job."""
        body = {
            "apiVersion": API_VERSION,
            "kind": "RLJob",
            "metadata": {"name": self.name, "namespace": self.namespace},
            "status": status,
        }
        query = urlencode({"fieldManager": FIELD_MANAGER, "force": "true"})
        return await self._send("PATCH", f"{self._jobs}/{self.name}/status?{query}", json_in_yaml(body))

    async def close(self) -> None:
        """Ends all connections."""
        await self._rest.close()

    async def _send(self, method: str, path: str, body: bytes | None = None) -> dict[str, Any]:
        async with self._exchange(method, path, aiohttp.ClientTimeout(total=REQUEST_TIMEOUT), body) as response:
            answer: dict[str, Any] = json.loads(await response.read())
            return answer

    @asynccontextmanager
    async def _exchange(
        self, method: str, path: str, limits: aiohttp.ClientTimeout, body: bytes | None = None
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        # The charset lets the client send the body as it is: for the bare type it writes JSON that the server's YAML parser may refuse.
        kind = "application/apply-patch+yaml; charset=utf-8" if method == "PATCH" else "application/json"
        try:
            token = await self._configuration.get_api_key_with_prefix("BearerToken")
            headers = {"Accept": "application/json", "Content-Type": kind, "User-Agent": FIELD_MANAGER}
            headers |= {"Authorization": token} if token else {}
            url = self._configuration.host + path
            reply = await self._rest.request(method, url, headers, body, _request_timeout=limits)
            async with reply.response as response:
                if response.status >= HTTPStatus.BAD_REQUEST:
                    raise Rejected(response.status, _message(await response.read()))
                yield response
        except _NO_ANSWER as error:
            raise NoAnswer(f"{method} {path.partition('?')[0]}: {_words(error)}") from error


def _words(error: Exception) -> str:
    """Returns why a request got no answer, without the TLS context's representation that aiohttp's messages contain."""
    return re.sub(r" ssl:(<[^>]*>|\S+)", "", str(error)) or f"no answer within {REQUEST_TIMEOUT:g} s"


def _message(body: bytes) -> str:
    try:
        return str(json.loads(body)["message"])
    except (ValueError, KeyError, TypeError):
        return body[:500].decode(errors="replace")
