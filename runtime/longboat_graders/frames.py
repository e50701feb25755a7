"""Messages on a stream: the lengths of header and body, each four bytes, big endian; then a JSON object; then the body's bytes. Pure.

The body is a sample, which who only passes it on needn't decode.
"""

from __future__ import annotations

import json

TYPE_CHECKING = False  # `typing` itself would be in the memory of every grader
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

_LENGTH_BYTES = 4
_LENGTHS_BYTES = 2 * _LENGTH_BYTES
# A response and its row; far more than any model's context.
MAX_FRAME_BYTES = 64 * 2**20
_dumps = json.JSONEncoder(separators=(",", ":")).encode
# A value and where it ends, as JSONDecoder itself asks for it; StopIteration where there is none.
_scan: Callable[[str, int], tuple[Any, int]] = json.JSONDecoder().scan_once  # type: ignore[attr-defined]


class FrameError(ValueError):
    """Says that a message isn't a frame: one that came, so the stream can't be trusted, or one that can't be sent."""


def to_json(value: Any) -> bytes:
    """Encodes a value as JSON. Raises FrameError if it has no such form."""
    try:
        return _dumps(value).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise FrameError(f"it isn't JSON: {error}") from error


def from_json(data: bytes | bytearray) -> Any:
    """Decodes what `to_json` encoded. Raises FrameError for what isn't JSON, or has anything, even white space, before or after it."""
    try:
        text = data.decode()
        value, end = _scan(text, 0)
    except StopIteration:
        raise FrameError("not JSON: there is no value") from None
    except (ValueError, RecursionError) as error:
        raise FrameError(f"not JSON: {error}") from error
    if end != len(text):
        raise FrameError("not JSON: there is more after it")
    return value


def encode(message: Mapping[str, Any], body: bytes = b"") -> bytes:
    """Makes the frame of `message` and its body. Raises FrameError if they are too long together, or `message` has no form as JSON."""
    header = to_json(message)
    length = len(header) + len(body)
    if length > MAX_FRAME_BYTES:
        raise FrameError(f"a message of {length} bytes; at most {MAX_FRAME_BYTES} can be sent")
    return len(header).to_bytes(_LENGTH_BYTES, "big") + len(body).to_bytes(_LENGTH_BYTES, "big") + header + body


class FrameBuffer:
    """Takes bytes as they come and returns whole messages. `limit` bounds one message, in bytes."""

    def __init__(self, limit: int = MAX_FRAME_BYTES) -> None:
        self._limit = limit
        self._data = bytearray()

    @property
    def empty(self) -> bool:
        """Whether the last message is complete."""
        return not self._data

    def feed(self, data: bytes) -> list[tuple[dict[str, Any], bytes]]:
        """Returns the messages that are complete with `data`, each with its body, in order. Raises FrameError for what can't be one."""
        unread = self._data
        if unread:
            unread += data
        pending: bytes | bytearray = unread or data
        messages: list[tuple[dict[str, Any], bytes]] = []
        start, available = 0, len(pending)
        while available - start >= _LENGTHS_BYTES:
            middle, first = start + _LENGTH_BYTES, start + _LENGTHS_BYTES
            header = int.from_bytes(pending[start:middle], "big")
            body = int.from_bytes(pending[middle:first], "big")
            if header + body > self._limit:
                raise FrameError(f"a frame of {header + body} bytes; at most {self._limit} are taken")
            end = first + header + body
            if available < end:
                break
            messages.append((_decode(pending[first : first + header]), bytes(pending[first + header : end])))
            start = end
        if unread:
            del unread[:start]
        elif start < available:
            unread += data[start:]
        return messages


def _decode(header: bytes | bytearray) -> dict[str, Any]:
    message = from_json(header)
    if not isinstance(message, dict):
        raise FrameError(f"a JSON {type(message).__name__} instead of an object")
    return message
