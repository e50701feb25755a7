"""Messages, tools and template arguments of a row in one form, whatever file they come from. Pure.

Values are JSON's (`columns.plain`). Every function raises ValueError with what is wrong and the cure, for a sentence that begins with the row.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

Message = dict[str, Any]

# What Longboat passes to chat templates itself, and options of transformers' `apply_chat_template` that are no arguments of templates.
_RESERVED_ARGUMENTS = {
    *("add_generation_prompt", "continue_final_message", "messages", "tools"),
    *("chat_template", "conversation", "max_length", "padding", "return_assistant_tokens_mask", "return_dict"),
    *("return_tensors", "tokenize", "tokenizer_kwargs", "truncation"),
}
# Who may speak last before the model does (TRL, `apply_chat_template`).
_LAST_ROLES = ("user", "tool", "assistant")


def without_nulls(value: Any) -> Any:
    """Drops the keys that are null, at any depth.

    Arrow gives every object of a column all keys that any of them has (TRL's `remove_none_values` does the same).
    """
    if isinstance(value, Mapping):
        return {key: without_nulls(item) for key, item in value.items() if item is not None}
    return [without_nulls(item) for item in value] if isinstance(value, list) else value


def normalised(value: Any) -> list[Message]:
    """Returns the messages of a row: without nulls, their contents as text."""
    if not isinstance(value, list) or not value:
        raise ValueError("is neither text nor a list of messages with `role` and `content`")
    messages = [_message(message, number) for number, message in enumerate(value)]
    last = messages[-1]["role"]
    if last not in _LAST_ROLES:
        raise ValueError(
            f"ends in a {last!r} message, which the model can't answer: end it in one of {', '.join(_LAST_ROLES)}"
        )
    if last == "assistant" and not messages[-1].get("content"):
        raise ValueError("ends in an empty assistant message: remove it")
    return messages


def _message(value: Any, number: int) -> Message:
    if not isinstance(value, Mapping) or not isinstance(value.get("role"), str):
        raise ValueError(f"has an item at [{number}] that isn't a message: give it `role` and `content`")
    message: Message = without_nulls(value)
    if "content" in message:
        message["content"] = _text(message["content"], f"[{number}].content")
    elif message["role"] != "assistant" or "tool_calls" not in message:
        raise ValueError(f"has no `content` at [{number}]")
    return message


def _text(content: Any, where: str) -> str:
    """Joins the texts of a content's parts, as chat templates do."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise ValueError(f"has a {type(content).__name__} at {where}: write text, or a list of text parts")
    texts = []
    for index, part in enumerate(content):
        if not isinstance(part, Mapping) or part.get("type") != "text" or not isinstance(part.get("text"), str):
            kind = repr(part["type"]) if isinstance(part, Mapping) and "type" in part else type(part).__name__
            raise ValueError(
                f'has a part {kind} at {where}[{index}]: only {{"type": "text", "text": ...}} can be trained. Remove the row'
            )
        texts.append(part["text"])
    return "".join(texts)


def holds_messages(text: str) -> bool:
    """Whether a text is JSON of a list of messages, which would be sent to the model with its brackets and quotes."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return False
    return isinstance(value, list) and bool(value) and all(isinstance(item, dict) and "role" in item for item in value)


def tools(value: Any) -> list[dict[str, Any]] | None:
    """Returns the JSON schemas of a row's tools; None if it has none.

    The list and each of its schemas may be JSON text, as TRL's datasets have them.
    """
    value = _parsed(value)
    if not isinstance(value, list):
        raise ValueError(f"is a {type(value).__name__}: write a list of JSON schemas, one for each tool")
    schemas = [without_nulls(_parsed(schema)) for schema in value]
    for number, schema in enumerate(schemas):
        if not isinstance(schema, dict):
            raise ValueError(f"has a {type(schema).__name__} at [{number}]: write the JSON schema of a tool")
    return schemas or None


def arguments(value: Any) -> dict[str, Any]:
    """Returns arguments of the chat template, as a row or the spec has them."""
    value = _parsed(value)
    if not isinstance(value, Mapping):
        raise ValueError(f"is a {type(value).__name__}: write an object of names and values")
    if reserved := sorted(set(value) & _RESERVED_ARGUMENTS):
        raise ValueError(f"sets {', '.join(reserved)}, which can't be set here: remove it")
    arguments_: dict[str, Any] = without_nulls(value)
    return arguments_


def _parsed(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"is text that isn't JSON ({error})") from error


def tool_names(tools: Sequence[Any]) -> list[str]:
    """Returns the names of tools or of calls, as far as they have them at the usual place."""
    own = (tool.get("function", tool) for tool in tools if isinstance(tool, Mapping))
    return [schema["name"] for schema in own if isinstance(schema, Mapping) and isinstance(schema.get("name"), str)]
