"""Answers to requests for turns, as OpenAI's API has them. Pure."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from longboat_runtime.data.messages import Message
from longboat_runtime.recorder.record import Call
from longboat_runtime.samples import FinishReason
from longboat_runtime.turns import TurnReply

# The end of a stream of events.
DONE = b"data: [DONE]\n\n"
# Keeps a connection alive; clients skip it.
COMMENT = b": drawing\n\n"


def event(data: Any) -> bytes:
    """Returns one event of a stream."""
    return b"data: " + encoded(data) + b"\n\n"


def encoded(data: Any) -> bytes:
    """Returns JSON in ASCII: UTF-8 can't have half of a surrogate pair, which an error may quote of a request."""
    return json.dumps(data, separators=(",", ":")).encode()


def completion(call: Call, reply: TurnReply, model: str, created: int, texts: Sequence[str]) -> dict[str, Any]:
    """Returns a chat completion. `created` is in Unix seconds; `texts` are those of the drawn tokens, which log-probs are told with."""
    choice = {
        "index": 0,
        "message": _message(call.message),
        "logprobs": _logprobs(call, reply, texts),
        "finish_reason": _finish_reason(call.message, reply.finish_reason),
    }
    answer = _head(call, "chat.completion", model, created)
    if call.request.token_ids:
        answer["prompt_token_ids"] = call.ids.tolist()
        choice["token_ids"] = reply.token_ids.tolist()
    return {**answer, "choices": [choice], "usage": _usage(call, reply)}


def chunks(call: Call, reply: TurnReply, model: str, created: int, texts: Sequence[str]) -> list[dict[str, Any]]:
    """Returns a chat completion in chunks: the message, why it ended and, if the request wants it, the usage."""
    message = _message(call.message)
    if tool_calls := message.get("tool_calls"):
        message["tool_calls"] = [{"index": number, **tool_call} for number, tool_call in enumerate(tool_calls)]
    head = _head(call, "chat.completion.chunk", model, created)
    first = {"index": 0, "delta": message, "logprobs": _logprobs(call, reply, texts), "finish_reason": None}
    if call.request.token_ids:
        first["token_ids"] = reply.token_ids.tolist()
    last = {"index": 0, "delta": {}, "finish_reason": _finish_reason(call.message, reply.finish_reason)}
    result = [{**head, "choices": [first]}, {**head, "choices": [last]}]
    if call.request.token_ids:
        result[0]["prompt_token_ids"] = call.ids.tolist()
    if call.request.include_usage:
        result.append({**head, "choices": [], "usage": _usage(call, reply)})
    return result


def models(model: str, context: int) -> dict[str, Any]:
    """Returns the list of models: the one that is trained."""
    return {
        "object": "list",
        "data": [{"id": model, "object": "model", "created": 0, "owned_by": "longboat", "max_model_len": context}],
    }


def _head(call: Call, kind: str, model: str, created: int) -> dict[str, Any]:
    return {"id": f"chatcmpl-{call.number}", "object": kind, "created": created, "model": model}


def _message(message: Message) -> dict[str, Any]:
    """Returns the message with its reasoning under both names that servers use."""
    answer = {**message, "role": "assistant", "content": message.get("content")}
    if reasoning := message.get("reasoning"):
        answer["reasoning_content"] = reasoning
    return answer


def _finish_reason(message: Message, reason: FinishReason) -> str:
    if reason is not FinishReason.STOP:
        return "length"
    return "tool_calls" if message.get("tool_calls") else "stop"


def _logprobs(call: Call, reply: TurnReply, texts: Sequence[str]) -> dict[str, Any] | None:
    if not call.request.logprobs:
        return None
    values = zip(texts, reply.logprobs.tolist(), strict=True)
    tokens = [
        {"token": text, "logprob": value, "bytes": list(text.encode()), "top_logprobs": []} for text, value in values
    ]
    return {"content": tokens, "refusal": None}


def _usage(call: Call, reply: TurnReply) -> dict[str, int]:
    drawn = len(reply.token_ids)
    return {"prompt_tokens": call.length, "completion_tokens": drawn, "total_tokens": call.length + drawn}
