"""The turns of a model behind an endpoint of OpenAI's API, which hands out no tokens.

The recorder works on tokens. Here each message stands for one, whatever its length: its number among all messages of the episode. A reply
stands for as many as the endpoint says that it has, its number and then fillers, so that limits of drawn tokens hold.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from openai import AsyncOpenAI

from longboat_runtime.data.messages import Message
from longboat_runtime.recorder.contexts import Contexts, Tools
from longboat_runtime.recorder.refusals import invalid
from longboat_runtime.samples import FinishReason, IntArray, Sampling, SpecialToken, VersionSpan
from longboat_runtime.turns import TurnReply, TurnRequest

_FILLER = -1
# Clients send the reasoning of earlier replies back under either name; other endpoints needn't know them.
_REASONING = ("reasoning", "reasoning_content")


class EndpointContexts(Contexts):
    """`Contexts` of messages instead of tokens. They are appended whatever the endpoint's chat template does, which isn't known."""

    def __init__(self) -> None:
        self.messages: list[Message] = []

    def number(self, message: Message) -> int:
        """Returns the number that stands for a message."""
        self.messages.append(message)
        return len(self.messages) - 1

    def whole(self, messages: Sequence[Message], tools: Tools, arguments: Mapping[str, Any]) -> IntArray:
        del tools, arguments
        return self._numbers(messages)

    def suffix(
        self,
        messages: Sequence[Message],
        new: int,
        tools: Tools,
        arguments: Mapping[str, Any],
        drawn: TurnReply,
    ) -> IntArray | None:
        del tools, arguments
        # As the client sends it, with the ids of tool calls to which the results refer.
        self.messages[drawn.token_ids[0]] = messages[new - 1]
        return self._numbers(messages[new:])

    def appends(self, messages: Sequence[Message], tools: Tools, arguments: Mapping[str, Any]) -> bool:
        del messages, tools, arguments
        return True

    def token_texts(self, token_ids: Sequence[int]) -> list[str]:
        del token_ids
        raise invalid("logprobs", "can't be had from another endpoint than the job's. Leave it out.")

    def response(
        self, token_ids: Sequence[int], text: str, reason: FinishReason, sampling: Sampling
    ) -> tuple[str, tuple[SpecialToken, ...]]:
        del token_ids, reason, sampling
        return text, ()

    def _numbers(self, messages: Sequence[Message]) -> IntArray:
        return np.asarray([self.number(message) for message in messages], np.int32)


class EndpointTurns:
    """`turns.Turns` of `model` behind an endpoint, whose key OPENAI_API_KEY has. Raises openai.OpenAIError for what it refuses."""

    def __init__(self, url: str, model: str, contexts: EndpointContexts) -> None:
        self._client, self._model, self._contexts = AsyncOpenAI(base_url=url), model, contexts

    async def turn(self, request: TurnRequest) -> TurnReply:
        sampling = request.sampling
        options: dict[str, Any] = {
            "tools": list(request.tools),
            "stop": list(sampling.stop),
            "temperature": sampling.temperature if sampling.temperature != 1 else None,
            "top_p": sampling.top_p if sampling.top_p != 1 else None,
            "extra_body": {"chat_template_kwargs": dict(request.template_arguments)}
            if request.template_arguments
            else None,
        }
        answer = await self._client.chat.completions.create(
            model=self._model,
            messages=[
                _sent(self._contexts.messages[number]) for number in request.prompt_ids.tolist() if number != _FILLER
            ],
            max_completion_tokens=sampling.max_tokens,
            **{name: value for name, value in options.items() if value},
        )
        choice = answer.choices[0]
        message = choice.message.model_dump(exclude_none=True)
        tokens = max(1, answer.usage.completion_tokens if answer.usage else 1)
        ids = np.full(tokens, _FILLER, np.int32)
        ids[0] = self._contexts.number(message)
        return TurnReply(
            ids,
            np.zeros(tokens, np.float32),
            (VersionSpan(0, 0, tokens),),
            FinishReason.LENGTH if choice.finish_reason == "length" else FinishReason.STOP,
            choice.message.content or "",
            message,
        )


def _sent(message: Message) -> Any:
    """Returns a message as an endpoint takes it: arguments of tool calls are text there. Pure."""
    sent = {name: value for name, value in message.items() if name not in _REASONING}
    if calls := message.get("tool_calls"):
        sent["tool_calls"] = [{**call, "function": _called(call["function"])} for call in calls]
    return sent


def _called(function: Mapping[str, Any]) -> dict[str, Any]:
    arguments = function["arguments"]
    return {**function, "arguments": arguments if isinstance(arguments, str) else json.dumps(arguments)}
