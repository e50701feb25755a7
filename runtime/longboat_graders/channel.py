"""An asyncio connection that carries frames: many messages go out in one write, and come in without a task for each."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Protocol, cast

from longboat_graders.frames import FrameBuffer, FrameError, encode


class Receiver(Protocol):
    """Takes what comes over channels."""

    def received(self, channel: Channel, message: dict[str, Any], body: bytes) -> None:
        """Takes a message with its body."""

    def lost(self, channel: Channel, reason: str) -> None:
        """Takes the reason why no more will come."""


class Channel(asyncio.Protocol):
    """Hands to `receiver` what comes.

    What is sent while other callbacks of the event loop run goes out together; where `gather` isn't 0, what is sent in so many seconds.
    """

    def __init__(self, receiver: Receiver, gather: float = 0.0) -> None:
        self._receiver, self._gather = receiver, gather
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
            self._receiver.received(self, message, body)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._receiver.lost(self, f"the connection broke: {exc}" if exc is not None else self._reason)

    def _flush(self) -> None:
        frames, self._unsent = self._unsent, []
        if frames and self._transport is not None:
            self._transport.write(b"".join(frames))
