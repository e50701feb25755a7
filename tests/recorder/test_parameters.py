"""What of a request holds, what is ignored and what is refused."""

from typing import Any

import pytest

from longboat_runtime.recorder.parameters import ChatRequest, read_request, turn_sampling
from longboat_runtime.recorder.refusals import Refused
from longboat_runtime.samples import Sampling
from tests.recorder.world import MODEL, TOOLS, says

JOB = Sampling(1000, temperature=0.7, top_p=0.9, stop=("END",), stop_token_ids=(5,))
REFUSED: dict[str, Any] = {
    "n": 2,
    "logit_bias": {"5": 1},
    "frequency_penalty": 0.1,
    "presence_penalty": -1,
    "repetition_penalty": 1.1,
    "length_penalty": 2,
    "top_logprobs": 5,
    "response_format": {"type": "json_object"},
    "reasoning_effort": "low",
    "verbosity": "high",
    "parallel_tool_calls": False,
    "functions": [{"name": "f"}],
    "function_call": {"name": "f"},
    "modalities": ["text", "audio"],
    "audio": {"voice": "a"},
    "prediction": {"type": "content", "content": "x"},
    "web_search_options": {},
    "best_of": 2,
    "use_beam_search": True,
    "top_k": 5,
    "min_p": 0.1,
    "min_tokens": 3,
    "stop_token_ids": [7],
    "include_stop_str_in_output": True,
    "ignore_eos": True,
    "allowed_token_ids": [1],
    "bad_words": ["x"],
    "logits_processors": ["x"],
    "logprob_token_ids": [1],
    "prompt_logprobs": 1,
    "repetition_detection": {},
    "thinking_token_budget": 5,
    "include_reasoning": False,
    "skip_special_tokens": False,
    "spaces_between_special_tokens": False,
    "truncate_prompt_tokens": 5,
    "echo": True,
    "add_generation_prompt": False,
    "continue_final_message": True,
    "add_special_tokens": True,
    "chat_template": "{{ messages }}",
    "documents": [{"title": "a", "text": "b"}],
    "structured_outputs": {"json": {}},
    "guided_json": {},
    "guided_regex": "a",
    "guided_choice": ["a"],
    "guided_grammar": "a",
    "return_tokens_as_token_ids": True,
    "vllm_xargs": {"a": 1},
}
UNCHANGING: list[dict[str, Any]] = [
    {"n": 1, "logit_bias": {}, "frequency_penalty": 0, "presence_penalty": 0.0, "top_logprobs": 0},
    {"response_format": {"type": "text"}, "parallel_tool_calls": True, "tool_choice": "auto", "modalities": ["text"]},
    {"repetition_penalty": 1.0, "top_k": -1, "min_p": 0, "echo": False, "verbosity": "medium", "stop_token_ids": []},
    dict.fromkeys([*REFUSED, "temperature", "top_p", "seed", "stop", "tools", "tool_choice", "max_tokens", "stream", "stream_options"]),
    {"temperature": 0.7, "top_p": 0.9},
]  # fmt: skip


def read(**body: Any) -> ChatRequest:
    return read_request(
        {"model": MODEL, "messages": [says("user", "Go.")], **body}, MODEL, JOB, {"enable_thinking": True}
    )


@pytest.mark.parametrize("key", REFUSED)
def test_what_would_change_the_reply_is_refused_by_name(key: str) -> None:
    with pytest.raises(Refused, match=f"`{key}`") as refused:
        read(**{key: REFUSED[key]})
    assert (refused.value.status, refused.value.param, refused.value.code) == (400, key, "unsupported_parameter")


@pytest.mark.parametrize("body", UNCHANGING)
def test_defaults_change_nothing(body: dict[str, Any]) -> None:
    assert read(**body) == read()


def test_the_sampling_of_requests_is_ignored_and_counted() -> None:
    request = read(temperature=0, top_p=0.5, seed=4, user="ann", metadata={"a": "b"}, new_key=1)
    assert request.ignored == ("metadata", "new_key", "seed", "temperature", "top_p", "user")
    assert turn_sampling(JOB, request, 50) == turn_sampling(JOB, read(), 50)


@pytest.mark.parametrize(
    "choice", ["required", {"type": "function", "function": {"name": "look"}}, {"type": "allowed_tools"}]
)
def test_a_call_cannot_be_forced(choice: Any) -> None:
    with pytest.raises(Refused, match="`tool_choice` can't force"):
        read(tools=TOOLS, tool_choice=choice)


def test_no_choice_leaves_the_tools_out() -> None:
    assert read(tools=TOOLS).tools == tuple(TOOLS)
    assert read(tools=TOOLS, tool_choice="none") == read() == read(tools=[])


def test_length_and_stop_texts_hold() -> None:
    sampling = turn_sampling(JOB, read(max_tokens=7, stop="A"), 50)
    assert (sampling.max_tokens, sampling.stop, sampling.stop_token_ids) == (7, ("END", "A"), (5,))
    assert turn_sampling(JOB, read(max_completion_tokens=80, max_tokens=7, stop=["A", "END"]), 50) == turn_sampling(
        JOB, read(stop=["A"]), 50
    )


def test_arguments_of_the_template_are_the_jobs_and_the_requests() -> None:
    request = read(chat_template_kwargs={"enable_thinking": False, "size": 3})
    assert request.arguments == {"enable_thinking": False, "size": 3}
    assert read().arguments == {"enable_thinking": True}


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_completion_tokens": "many"}, "max_completion_tokens"),
        ({"max_tokens": True}, "max_tokens"),
        ({"stop": ["a", ""]}, "stop"),
        ({"stop": 3}, "stop"),
        ({"stream": "yes"}, "stream"),
        ({"logprobs": 1}, "logprobs"),
        ({"stream_options": 1}, "stream_options"),
        ({"stream_options": {"include_usage": 1}}, "stream_options.include_usage"),
        ({"tools": "look"}, "tools"),
        ({"tools": [TOOLS[0], {"name": "move"}]}, "tools[1]"),
        ({"tools": [{"type": "custom", "custom": {"name": "a"}}]}, "tools[0]"),
        ({"chat_template_kwargs": {"tokenize": True}}, "chat_template_kwargs"),
        ({"chat_template_kwargs": 3}, "chat_template_kwargs"),
    ],
)
def test_values_that_do_not_fit_are_named(body: dict[str, Any], param: str) -> None:
    with pytest.raises(Refused) as refused:
        read(**body)
    assert (refused.value.param, refused.value.status) == (param, 400)


def test_another_model_is_not_here() -> None:
    with pytest.raises(Refused, match="no model 'gpt-5' here: use 'policy'") as refused:
        read(model="gpt-5")
    assert (refused.value.status, refused.value.code) == (404, "model_not_found")
    with pytest.raises(Refused, match="no JSON object"):
        read_request([], MODEL, JOB, {})
