"""An asyncio connection that carries frames: many messages go out in one write, and come in without a task for each."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, cast

from longboat_runtime.reward.graders.frames import FrameBuffer, FrameError, encode


class Channel(asyncio.Protocol):
    """Hands every message with its body to `receive`, and the reason to `lost` once no more will come.

    What is sent while other callbacks of the event loop run goes out together; where `gather` isn't 0, what is sent in so many seconds.
    """

    def __init__(
        self, receive: Callable[[dict[str, Any], bytes], None], lost: Callable[[str], None], gather: float = 0.0
    ) -> None:
        self._receive, self._lost, self._gather = receive, lost, gather
        self._buffer = FrameBuffer()
        self._transport: asyncio.Transport | None = None
        self._unsent: list[bytes] = []
        self._reason = "the other side closed the connection"

    @property
    def open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    def send(self, message: Mapping[str, Any], body: bytes = b"") -> None:
        """Raises FrameError if it can't be sent. What a closed connection is given is lost, and so is the connection."""
        frame = encode(message, body)
        if not self._unsent:
            loop = asyncio.get_running_loop()
            if self._gather:
                loop.call_later(self._gather, self._flush)
            else:
                loop.call_soon(self._flush)
        self._unsent.append(frame)

    def close(self) -> None:
        """Sends what has been given, and closes."""
        self._flush()
        if self._transport is not None:
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # By its kind, not its class: in a Ray actor it is one of uvloop's.
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        try:
            messages = self._buffer.feed(data)
        except FrameError as error:
            self._reason = f"the connection broke: {error}"
            assert self._transport is not None
            self._transport.abort()
            return
        for message, body in messages:
            self._receive(message, body)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._lost(f"the connection broke: {exc}" if exc is not None else self._reason)

    def _flush(self) -> None:
        frames, self._unsent = self._unsent, []
        if frames and self._transport is not None:
            self._transport.write(b"".join(frames))
