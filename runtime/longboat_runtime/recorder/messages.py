"""Messages of requests: the form that chat templates take, and the form in which two lists are compared. Pure."""

from __future__ import annotations

import json
import marshal
from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b
from types import MappingProxyType
from typing import Any, NamedTuple

from longboat_runtime.data.messages import Message
from longboat_runtime.recorder.refusals import invalid

# `developer` is OpenAI's newer word for `system`.
_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}
# Keys that two messages may differ in and still be equal; that of reasoning is compared apart, since clients may drop it.
_NOT_COMPARED = {"reasoning", "reasoning_content", "tool_call_id", "id"}


class SentMessage(NamedTuple):
    """A message of a request as chat templates take it, the digest of it `as_sent`, and the one by which it is `compared`."""

    message: Message
    as_sent: bytes
    compared: bytes


def conversation(value: Any, earlier: Mapping[bytes, SentMessage] = MappingProxyType({})) -> list[SentMessage]:
    """Returns the messages of a request as chat templates take them: no nulls, contents as text, arguments of tool calls parsed.

    One that is among the `earlier` ones, by its digest as it was sent, isn't read again. Raises Refused, which names the part that is wrong.
    """
    if not isinstance(value, list) or not value:
        raise invalid("messages", "is no list of messages. Send at least one message with `role` and `content`.")
    messages = []
    for number, sent in enumerate(value):
        # As exact as the JSON that was sent, and much faster.
        as_sent = _digest(marshal.dumps(sent, 0))
        message = earlier.get(as_sent)
        if message is None:
            normal = template_message(sent, f"messages[{number}]")
            message = SentMessage(normal, as_sent, compared(normal))
        messages.append(message)
    if messages[-1].message["role"] == "assistant":
        raise invalid(
            f"messages[{len(messages) - 1}]",
            "is the assistant's, which the model can't answer: end in a user, tool or system message.",
        )
    return messages


def template_message(value: Any, place: str) -> Message:
    """Returns one message, as `conversation` does. `place` is its name in errors."""
    role = value.get("role") if isinstance(value, Mapping) else None
    if not isinstance(role, str) or role not in _ROLES:
        raise invalid(place, f"has no `role` that is one of {', '.join(_ROLES)}.")
    message = {key: item for key, item in value.items() if item is not None}
    message |= {"role": _ROLES[role], "content": _text(value.get("content"), f"{place}.content")}
    if reasoning := message.get("reasoning") or message.get("reasoning_content"):
        # Templates read the one or the other.
        message["reasoning"] = message["reasoning_content"] = reasoning
    calls = message.pop("tool_calls", None)
    if calls:
        if not isinstance(calls, list):
            raise invalid(f"{place}.tool_calls", "is no list.")
        message["tool_calls"] = [_tool_call(call, f"{place}.tool_calls[{n}]") for n, call in enumerate(calls)]
    return message


def _text(content: Any, place: str) -> str:
    """Joins the texts of a content's parts, as chat templates do."""
    if content is None or isinstance(content, str):
        return content or ""
    if not isinstance(content, list):
        raise invalid(place, "is neither text nor a list of text parts.")
    texts = []
    for number, part in enumerate(content):
        if not isinstance(part, Mapping) or part.get("type") != "text" or not isinstance(part.get("text"), str):
            raise invalid(
                f"{place}[{number}]", 'is no part {"type": "text", "text": ...}; models here read text alone.'
            )
        texts.append(part["text"])
    return "".join(texts)


def _tool_call(call: Any, place: str) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise invalid(place, "has no `function` with a `name`.")
    arguments = _parsed(function.get("arguments"))
    return {**call, "type": "function", "function": {"name": function["name"], "arguments": arguments}}


def _parsed(arguments: Any) -> Any:
    """Returns the arguments of a tool call as an object, or the text as it is if it isn't one."""
    if not isinstance(arguments, str):
        return arguments or {}
    try:
        value = json.loads(arguments) if arguments.strip() else {}
    except (ValueError, RecursionError):
        return arguments.strip()
    return value if isinstance(value, dict) else arguments.strip()


def canonical(value: Any) -> str:
    """Returns JSON that is equal for equal values, whatever the order of their keys."""
    return json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":"))


def comparable(message: Message) -> str:
    """Returns a text that two messages of conversations share if they are equal.

    Outer white space doesn't count, nor do ids; what is empty is as good as absent; tool calls are compared by name and parsed arguments.
    Reasoning isn't compared here (`reasoning_of`).
    """
    rest = {key: item for key, item in message.items() if key not in _NOT_COMPARED}
    calls = rest.pop("tool_calls", [])
    content = rest.pop("content").strip()
    called = [[call["function"]["name"], _whole(call["function"]["arguments"])] for call in calls]
    return canonical([content, called, _filled(rest)])


def _filled(value: Any) -> Any:
    """Drops what is empty, at any depth."""
    if isinstance(value, Mapping):
        items = {key: _filled(item) for key, item in value.items()}
        return {key: item for key, item in items.items() if item not in (None, "", [], {})}
    return [_filled(item) for item in value] if isinstance(value, list) else value


def _whole(value: Any) -> Any:
    """Makes integers of floats that are whole, at any depth: clients in JavaScript send 1 for 1.0."""
    if isinstance(value, Mapping):
        return {key: _whole(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_whole(item) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def reasoning_of(message: Message) -> str:
    """Returns the reasoning of a message; empty if it has none, or a client has dropped it."""
    return str(message.get("reasoning") or "").strip()


def first_digest(tools: Sequence[Mapping[str, Any]] | None, arguments: Mapping[str, Any]) -> bytes:
    """Returns the digest of an empty conversation with these tools and template arguments."""
    return _digest(canonical([tools or [], arguments]).encode(errors="surrogatepass"))


def compared(message: Message) -> bytes:
    """Returns the digest of `comparable`."""
    return _digest(comparable(message).encode(errors="surrogatepass"))


def digests(start: bytes, messages: Iterable[bytes]) -> list[bytes]:
    """Returns the digests of a conversation after each of its messages, which are given by `compared`. `start` is that before the first."""
    result = []
    for message in messages:
        start = _digest(start + message)
        result.append(start)
    return result


def _digest(data: bytes) -> bytes:
    return blake2b(data, digest_size=16).digest()
