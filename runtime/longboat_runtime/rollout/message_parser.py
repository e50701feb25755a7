"""Reads an assistant's message from the text of a turn, by vLLM's parsers."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable
from typing import Any

from longboat_crds.problems import SpecProblem, suggestion
from longboat_crds.reasons import Reason
from longboat_runtime.data.messages import Message
from longboat_runtime.rollout.engine import TurnParsers
from longboat_runtime.turns import TurnReply, TurnRequest

log = logging.getLogger(__name__)


class MessageParser:
    """Reads messages as vLLM's chat endpoint does, but what can't be parsed stays text.

    So the content of a turn has all of its tool calls if one was cut off, or has arguments that aren't JSON. vLLM would leave some out.
    """

    def __init__(self, names: TurnParsers, tokenizer: Any, model_config: Any) -> None:
        """Raises SpecProblem for a name that vLLM doesn't have, or a parser that needs tokens which the tokenizer lacks."""
        self._tokenizer, self._model_config = tokenizer, model_config
        self._reasoning = (
            None if names.reasoning is None else _parser_kind(TurnParsers(None, names.reasoning), tokenizer)
        )
        self._calls = None if names.tool is None else _parser_kind(names, tokenizer)

    def message(self, request: TurnRequest, reply: TurnReply) -> Message:
        """Returns the turn's message: `content`, and `reasoning` and `tool_calls` if there are any. No calls without tools."""
        for kind in (self._calls if request.tools else None, self._reasoning):
            if kind is None:
                continue
            try:
                message = self._parsed(kind, request, reply)
            except Exception as error:  # noqa: BLE001 - the model may have written anything
                log.debug("turn %d of sample %s can't be parsed: %s", request.number, request.sample, error)
                continue
            if kind is self._reasoning or "tool_calls" in message:
                return message
        return {"role": "assistant", "content": reply.text}

    def _parsed(self, kind: Any, request: TurnRequest, reply: TurnReply) -> Message:
        """Returns the message, with tool calls only if all have arguments in JSON. Raises whatever parsers raise."""
        from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest

        chat = ChatCompletionRequest(messages=[], tools=[*request.tools] or None)
        arguments = dict(request.template_arguments)
        parser = kind(self._tokenizer, chat.tools, chat_template_kwargs=arguments, model_config=self._model_config)
        parser.set_prompt_token_ids(request.prompt_ids.tolist())
        ids = reply.token_ids.tolist()
        reasoning, content, calls = parser.parse(reply.text, chat, enable_auto_tools=True, model_output_token_ids=ids)
        message: Message = {"role": "assistant", "content": content}
        if reasoning:
            message["reasoning"] = reasoning
        if calls and all(_is_json(call.arguments) for call in calls):
            message["tool_calls"] = [
                {"type": "function", "function": {"name": call.name, "arguments": call.arguments}} for call in calls
            ]
        return message


def check_name(field: str, name: str, available: Iterable[str]) -> None:
    """Raises SpecProblem, with the nearest name, unless vLLM has a parser of this name (pure)."""
    names = sorted(available)
    if name not in names:
        message = f"vLLM has no parser {name!r}.{suggestion(name, names)} It has {', '.join(names)}"
        raise SpecProblem(Reason.SPEC_INVALID, field, message)


def _parser_kind(names: TurnParsers, tokenizer: Any) -> Any:
    """Returns vLLM's class for these parsers together. Raises SpecProblem."""
    from vllm.parser.parser_manager import ParserManager
    from vllm.reasoning import ReasoningParserManager
    from vllm.tool_parsers import ToolParserManager

    field = "rollout.reasoningParser" if names.tool is None else "rollout.toolParser"
    if names.reasoning is not None:
        check_name("rollout.reasoningParser", names.reasoning, ReasoningParserManager.list_registered())
    if names.tool is not None:
        check_name("rollout.toolParser", names.tool, ToolParserManager.list_registered())
    try:
        return ParserManager.get_parser(names.tool, names.reasoning, enable_auto_tools=True, tokenizer=tokenizer)
    except TypeError as error:
        message = f"{error}; use the parser that vLLM's documentation names for this model"
        raise SpecProblem(Reason.SPEC_INVALID, field, message) from error


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True
