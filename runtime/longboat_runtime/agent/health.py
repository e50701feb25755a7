"""The agent's probes over HTTP: /healthz (the agent can do its work) and /readyz (its role is up)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

# None: ready; else what is missing.
Missing = Callable[[], Awaitable[str | None]]
# None: healthy; else what only a new container can cure.
Broken = Callable[[], str | None]

_REQUEST_SECONDS = 5.0


async def serve_health(port: int, missing: Missing, broken: Broken, host: str = "") -> asyncio.Server:
    """Listens on all addresses unless `host` names one.

    /healthz is 503 with the reason while something is broken, /readyz also while something is missing.
    """

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            line = await asyncio.wait_for(reader.readline(), _REQUEST_SECONDS)
            status, body = await _response(line.decode(errors="replace").split(), missing, broken)
            writer.write(
                f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n{body}".encode()
            )
            await writer.drain()
        except (TimeoutError, ConnectionError):
            # The client is gone or silent, so nobody waits for an answer.
            return
        finally:
            writer.close()

    return await asyncio.start_server(answer, host or None, port)


async def _response(request: list[str], missing: Missing, broken: Broken) -> tuple[str, str]:
    match request:
        case ["GET", "/healthz", *_]:
            reason = broken()
        case ["GET", "/readyz", *_]:
            reason = broken() or await missing()
        case _:
            return "404 Not Found", "GET /healthz or /readyz"
    return ("200 OK", "ok") if reason is None else ("503 Service Unavailable", reason)
