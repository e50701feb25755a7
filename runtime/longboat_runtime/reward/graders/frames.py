"""Messages on a stream: four bytes of length, big endian, then one JSON object. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

HEADER_BYTES = 4
# A response and its row; far more than any model's context.
MAX_FRAME_BYTES = 64 * 2**20


class FrameError(ValueError):
    """What came isn't a frame: the stream can no longer be trusted."""


def encode(message: Mapping[str, Any]) -> bytes:
    """The frame of `message`. Raises FrameError if it is too long."""
    body = json.dumps(message, separators=(",", ":")).encode()
    if len(body) > MAX_FRAME_BYTES:
        raise FrameError(f"a message of {len(body)} bytes; at most {MAX_FRAME_BYTES} can be sent")
    return len(body).to_bytes(HEADER_BYTES, "big") + body


class FrameBuffer:
    """Takes bytes as they come and returns whole messages. `limit` bounds one message, in bytes."""

    def __init__(self, limit: int = MAX_FRAME_BYTES) -> None:
        self._limit = limit
        self._data = bytearray()

    def feed(self, data: bytes) -> list[dict[str, Any]]:
        """Messages that are complete with `data`. Raises FrameError for what can't be one."""
        self._data += data
        messages: list[dict[str, Any]] = []
        while len(self._data) >= HEADER_BYTES:
            length = int.from_bytes(self._data[:HEADER_BYTES], "big")
            if length > self._limit:
                raise FrameError(f"a frame of {length} bytes; at most {self._limit} are taken")
            end = HEADER_BYTES + length
            if len(self._data) < end:
                break
            messages.append(_decode(bytes(self._data[HEADER_BYTES:end])))
            del self._data[:end]
        return messages


def _decode(body: bytes) -> dict[str, Any]:
    try:
        message = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise FrameError(f"not JSON: {error}") from error
    if not isinstance(message, dict):
        raise FrameError(f"a JSON {type(message).__name__} instead of an object")
    return message
