"""The agent's probes over HTTP: /healthz (the agent's loop turns) and /readyz (its role is up)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

# None: ready; else what is missing.
Missing = Callable[[], Awaitable[str | None]]

_REQUEST_SECONDS = 5.0


async def serve_health(port: int, missing: Missing, host: str = "") -> asyncio.Server:
    """Listens on all addresses unless `host` names one. /readyz is 503 with the reason while something is missing."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            line = await asyncio.wait_for(reader.readline(), _REQUEST_SECONDS)
            status, body = await _response(line.decode(errors="replace").split(), missing)
            writer.write(
                f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n{body}".encode()
            )
            await writer.drain()
        except (TimeoutError, ConnectionError):
            # Whoever asked is gone or says nothing; there is nobody to tell.
            return
        finally:
            writer.close()

    return await asyncio.start_server(answer, host or None, port)


async def _response(request: list[str], missing: Missing) -> tuple[str, str]:
    match request:
        case ["GET", "/healthz", *_]:
            return "200 OK", "ok"
        case ["GET", "/readyz", *_]:
            reason = await missing()
            return ("200 OK", "ok") if reason is None else ("503 Service Unavailable", reason)
        case _:
            return "404 Not Found", "GET /healthz or /readyz"
