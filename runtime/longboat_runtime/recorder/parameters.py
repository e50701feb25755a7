"""Bodies of chat completions: what of them holds, what is ignored and counted, and what is refused. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from http import HTTPStatus
from types import MappingProxyType
from typing import Any

from longboat_runtime.data import messages as rows
from longboat_runtime.recorder.messages import SentMessage, conversation
from longboat_runtime.recorder.refusals import Refused, invalid
from longboat_runtime.samples import Sampling

# Keys that hold.
_OBEYED = {
    *("messages", "model", "max_tokens", "max_completion_tokens", "stop", "stream", "stream_options"),
    *("tools", "tool_choice", "logprobs", "return_token_ids", "chat_template_kwargs"),
}
# Keys that would change the distribution or the reply, and the values that change nothing, of OpenAI's API and of vLLM's.
# Null changes nothing in any.
_REFUSED: Mapping[str, tuple[Any, ...]] = {
    "n": (1,),
    "logit_bias": ({},),
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "repetition_penalty": (1,),
    "length_penalty": (1,),
    "top_logprobs": (0,),
    "response_format": ({"type": "text"},),
    "reasoning_effort": (),
    "verbosity": ("medium",),
    "parallel_tool_calls": (True,),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "modalities": (["text"],),
    "audio": (),
    "prediction": (),
    "web_search_options": (),
    "best_of": (1,),
    "use_beam_search": (False,),
    "top_k": (0, -1),
    "min_p": (0,),
    "min_tokens": (0,),
    "stop_token_ids": ([],),
    "include_stop_str_in_output": (False,),
    "ignore_eos": (False,),
    "allowed_token_ids": ([],),
    "bad_words": ([],),
    "logits_processors": ([],),
    "logprob_token_ids": ([],),
    "prompt_logprobs": (0,),
    "repetition_detection": (),
    "thinking_token_budget": (),
    "include_reasoning": (True,),
    "skip_special_tokens": (True,),
    "spaces_between_special_tokens": (True,),
    "truncate_prompt_tokens": (),
    "echo": (False,),
    "add_generation_prompt": (True,),
    "continue_final_message": (False,),
    "add_special_tokens": (False,),
    "chat_template": (),
    "documents": ([],),
    "structured_outputs": (),
    "guided_json": (),
    "guided_regex": (),
    "guided_choice": ([],),
    "guided_grammar": (),
    "return_tokens_as_token_ids": (False,),
    "vllm_xargs": ({},),
}


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """A request for a turn.

    `tools` is None if there are none, or the model may call none. `arguments` are those of the chat template. `ignored` are the keys that
    were given and don't hold.
    """

    messages: tuple[SentMessage, ...]
    tools: tuple[Mapping[str, Any], ...] | None
    arguments: Mapping[str, Any]
    max_tokens: int | None
    stop: tuple[str, ...]
    stream: bool
    include_usage: bool
    logprobs: bool
    token_ids: bool
    ignored: tuple[str, ...]


def read_request(
    body: Any,
    model: str,
    sampling: Sampling,
    arguments: Mapping[str, Any],
    earlier: Mapping[bytes, SentMessage] = MappingProxyType({}),
) -> ChatRequest:
    """Reads the JSON body of a request to the model named `model`, whose sampling and template `arguments` are the job's.

    `earlier` are messages that were read before (`conversation`). Raises Refused, which names the key that is wrong.
    """
    if not isinstance(body, Mapping):
        raise Refused("The body is no JSON object.", code="invalid_json")
    for key, unchanging in _REFUSED.items():
        if (value := body.get(key)) is not None and not any(_same(value, item) for item in unchanging):
            raise Refused(
                f"`{key}` can't be set here: turns are drawn as the job's sampling says, and replies are as the model drew them. Remove it.",
                code="unsupported_parameter",
                param=key,
            )
    if body.get("model") != model:
        raise Refused(
            f"There is no model {body.get('model')!r} here: use {model!r}.",
            code="model_not_found",
            param="model",
            status=HTTPStatus.NOT_FOUND,
        )
    choice = body.get("tool_choice")
    if choice not in (None, "auto", "none"):
        raise Refused(
            "`tool_choice` can't force a call: send `auto` or `none`.",
            code="unsupported_parameter",
            param="tool_choice",
        )
    options = body.get("stream_options") or {}
    if not isinstance(options, Mapping):
        raise invalid("stream_options", "is no object.")
    return ChatRequest(
        messages=tuple(conversation(body.get("messages"), earlier)),
        tools=None if choice == "none" else _tools(body.get("tools")),
        arguments={**arguments, **_arguments(body.get("chat_template_kwargs"))},
        max_tokens=_max_tokens(body),
        stop=_stop(body.get("stop")),
        stream=_flag(body, "stream"),
        include_usage=_flag(options, "include_usage", "stream_options."),
        logprobs=_flag(body, "logprobs"),
        token_ids=_flag(body, "return_token_ids"),
        ignored=_ignored(body, sampling),
    )


def turn_sampling(sampling: Sampling, request: ChatRequest, most: int) -> Sampling:
    """Returns how a turn is drawn: as the job says, with the request's stop texts too, and at most `most` tokens."""
    return replace(
        sampling,
        max_tokens=most if request.max_tokens is None else min(most, request.max_tokens),
        stop=tuple(dict.fromkeys((*sampling.stop, *request.stop))),
    )


def _same(value: Any, default: Any) -> bool:
    """Whether two values are equal, and both are truth values or neither is."""
    return bool(value == default) and isinstance(value, bool) == isinstance(default, bool)


def _ignored(body: Mapping[str, Any], sampling: Sampling) -> tuple[str, ...]:
    """Returns the keys that don't hold: unknown ones, and settings of the job that a request gives another value."""
    own = {"temperature": sampling.temperature, "top_p": sampling.top_p}
    return tuple(
        sorted(
            key
            for key, value in body.items()
            if value is not None
            and key not in _OBEYED
            and key not in _REFUSED
            and not (key in own and value == own[key])
        )
    )


def _max_tokens(body: Mapping[str, Any]) -> int | None:
    for key in ("max_completion_tokens", "max_tokens"):  # the second is OpenAI's older name
        value = body.get(key)
        if value is not None:
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise invalid(key, f"is {value!r}, not a number of tokens, which is at least 1.")
            return value
    return None


def _stop(value: Any) -> tuple[str, ...]:
    texts = [value] if isinstance(value, str) else value or []
    if not isinstance(texts, list) or not all(isinstance(text, str) and text for text in texts):
        raise invalid("stop", "is neither a text nor a list of texts that aren't empty.")
    return tuple(texts)


def _flag(body: Mapping[str, Any], key: str, before: str = "") -> bool:
    value = body.get(key)
    if value is not None and not isinstance(value, bool):
        raise invalid(f"{before}{key}", f"is {value!r}, neither true nor false.")
    return bool(value)


def _tools(value: Any) -> tuple[Mapping[str, Any], ...] | None:
    if not value:
        return None
    if not isinstance(value, list):
        raise invalid("tools", "is no list.")
    for number, tool in enumerate(value):
        function = tool.get("function") if isinstance(tool, Mapping) and tool.get("type") == "function" else None
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            raise invalid(f"tools[{number}]", 'is no {"type": "function", "function": {"name": ...}}.')
    return tuple(value)


def _arguments(value: Any) -> dict[str, Any]:
    if value is None:
        return {}
    try:
        return rows.arguments(value)
    except ValueError as error:
        raise invalid("chat_template_kwargs", f"{error}.") from error
