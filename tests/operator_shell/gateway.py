"""A proxy of the API server, whose answers can be late, refused or cut off."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from aiohttp import ClientSession, ClientTimeout, web
from aiohttp.test_utils import TestServer
from kubernetes.aio.client.configuration import Configuration

from longboat_operator.kube.transport import Transport


class Gateway:
    """Passes requests on. `before` is awaited before a request is passed on, `after` before each part of an answer."""

    def __init__(self, session: ClientSession, host: str) -> None:
        self._session, self._host = session, host
        self._status: Callable[[web.Request], int | None] = _none
        self._open: dict[asyncio.Task[None], web.Request] = {}
        self.before: Callable[[web.Request], Awaitable[None]] = _at_once
        self.after: Callable[[web.Request], Awaitable[None]] = _at_once

    def refuse(self, status: Callable[[web.Request], int | None]) -> None:
        """Answers requests with these statuses, but for those without one, and cuts off answers that would be refused now."""
        self._status = status
        for task, request in self._open.items():
            if status(request):
                task.cancel()

    def mend(self) -> None:
        """Refuses nothing any more."""
        self._status = _none

    async def answer(self, request: web.Request) -> web.StreamResponse:
        if code := self._status(request):
            words = {"kind": "Status", "code": code, "message": f"the test answers {code}"}
            return web.json_response(words, status=code)
        await self.before(request)
        body = await request.read()
        headers = {name: request.headers[name] for name in ("Accept", "Content-Type") if name in request.headers}
        asked = self._session.request(
            request.method,
            f"{self._host}{request.path_qs}",
            headers=headers,
            data=body or None,
            timeout=ClientTimeout(total=None),
        )
        async with asked as given:
            response = web.StreamResponse(status=given.status, headers={"Content-Type": given.content_type})
            await response.prepare(request)
            parts = asyncio.create_task(self._pass_on(given.content.iter_any(), request, response))
            self._open[parts] = request
            try:
                await asyncio.wait([parts])
            finally:
                parts.cancel()
                del self._open[parts]
            return response

    async def _pass_on(self, parts: AsyncIterator[bytes], request: web.Request, response: web.StreamResponse) -> None:
        async for part in parts:
            await self.after(request)
            await response.write(part)


@asynccontextmanager
async def open_gateway(transport: Transport) -> AsyncIterator[tuple[Gateway, Configuration]]:
    """Opens a gateway; yields it, and the configuration of its clients."""
    async with transport.session() as session:
        gateway = Gateway(session, transport.configuration.host)
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", gateway.answer)
        async with TestServer(app) as server:
            yield gateway, Configuration(host=str(server.make_url("/")).rstrip("/"))


async def _at_once(_: web.Request) -> None:
    pass


def _none(_: web.Request) -> None:
    return None
