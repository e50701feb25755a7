"""Chats as prompt text, by the tokenizer's chat template or the job's own."""

from __future__ import annotations

import datetime
import json
import re
from collections.abc import Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from longboat_runtime.data.messages import Message, tool_names

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_EMPTY_THINKING = re.compile(r"<think>\s*</think>\s*\Z")


@cache
def _variables(template: str) -> frozenset[str]:
    """Returns the names that a template reads and doesn't set itself."""
    from transformers.utils.chat_template_utils import _get_template_variables

    names: frozenset[str] = _get_template_variables(template)
    return names


def has_content(text: str, message: Message) -> bool:
    """Whether a rendered text has the content of the message. Some templates write that of a tool's message as JSON."""
    content = message.get("content", "").strip()
    return content in text or json.dumps(content, ensure_ascii=False)[1:-1] in text


class Chat:
    """Renders messages with `template`, or the tokenizer's own if it is None. A template that asks for the time gets `started`."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, template: str | None, started: datetime.datetime) -> None:
        self._tokenizer, self._template, self._started = tokenizer, template, started

    @property
    def has_template(self) -> bool:
        return self._template is not None or self._tokenizer.chat_template is not None

    def text(
        self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] | None, arguments: Mapping[str, Any]
    ) -> str:
        """Returns the prompt text. The model answers the last message or, if that is the assistant's, continues it.

        Raises ValueError if the template leaves out arguments, tools or messages, and whatever else it raises itself.
        Earlier messages of the assistant may lose their reasoning.
        """
        template = self._tokenizer.get_chat_template(self._template, tools=tools)
        if unknown := sorted(arguments.keys() - _variables(template)):
            raise ValueError(f"it doesn't use the arguments {', '.join(unknown)}")
        options = self._options(tools, arguments)
        if messages[-1]["role"] == "assistant":
            text = self._continued(messages, options)
        else:
            text = str(self._tokenizer.apply_chat_template(messages, add_generation_prompt=True, **options))
        for number, message in enumerate(messages):
            if message["role"] != "assistant" and not has_content(text, message):
                raise ValueError(f"it leaves out the content of message [{number}] ({message['role']})")
            if absent := [name for name in tool_names(message.get("tool_calls", ())) if name not in text]:
                raise ValueError(f"it leaves out the tool calls {', '.join(absent)} in message [{number}]")
        if absent := [name for name in tool_names(tools or ()) if name not in text]:
            raise ValueError(f"it leaves out the tools {', '.join(absent)}")
        return text

    def unchecked_text(
        self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] | None, arguments: Mapping[str, Any]
    ) -> str:
        """Returns the prompt text, whatever the template leaves out. Raises what the template raises."""
        options = self._options(tools, arguments)
        return str(self._tokenizer.apply_chat_template(messages, add_generation_prompt=True, **options))

    def _options(self, tools: Sequence[Mapping[str, Any]] | None, arguments: Mapping[str, Any]) -> dict[str, Any]:
        return {
            "tools": tools,
            "chat_template": self._template,
            "tokenize": False,
            "strftime_now": self._started.strftime,
            **arguments,
        }

    def _continued(self, messages: Sequence[Message], options: Mapping[str, Any]) -> str:
        """Renders messages of which the model continues the last.

        Some templates begin a last message with an empty think block. It stays only if they begin the model's own turn with it.
        """
        render, prefill = self._tokenizer.apply_chat_template, messages[-1]["content"]
        text = str(render(messages, continue_final_message=True, **options))
        content = prefill if text.endswith(prefill) else prefill.strip()
        if not content or not text.endswith(content):
            raise ValueError(f"it changes the assistant's last message ({prefill!r})")
        before = text.removesuffix(content)
        if _EMPTY_THINKING.search(before):
            turn = str(render(messages[:-1], add_generation_prompt=True, **options)) if len(messages) > 1 else ""
            if not _EMPTY_THINKING.search(turn):
                before = _EMPTY_THINKING.sub("", before)
        return f"{before}{content}"
