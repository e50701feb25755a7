"""Messages as vLLM's parsers read them; what can't be parsed is text."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

pytest.importorskip("vllm")

from longboat_crds.problems import SpecProblem
from longboat_runtime.rollout.engine import TurnParsers
from longboat_runtime.rollout.message_parser import MessageParser
from longboat_runtime.samples import FinishReason, SampleId, Sampling
from longboat_runtime.turns import TurnReply, TurnRequest

ADDED = ("<think>", "</think>", "<tool_call>", "</tool_call>")
ADD = {
    "type": "function",
    "function": {
        "name": "add",
        "parameters": {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}},
    },
}
CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": 2}}\n</tool_call>'
CALLED = [{"type": "function", "function": {"name": "add", "arguments": '{"a": 1, "b": 2}'}}]


def tokenizer(*added: str) -> PreTrainedTokenizerFast:
    names = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = Tokenizer(models.BPE(vocab={name: number for number, name in enumerate(names)}, merges=[]))
    made.add_tokens([AddedToken(name, special=False) for name in added])
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=made, clean_up_tokenization_spaces=False)


TOKENIZER = tokenizer(*ADDED)


def message(text: str, tool: str | None = None, reasoning: str | None = None, tools: tuple[Any, ...] = (ADD,)) -> Any:
    ids = np.asarray(TOKENIZER.encode(text), np.int32)
    request = TurnRequest(SampleId(0, 0, 0, 0), 0, np.asarray([1, 2], np.int32), 0, Sampling(100), tools=tools)
    reply = TurnReply(ids, np.zeros(len(ids), np.float32), (), FinishReason.STOP, text, {})
    return MessageParser(TurnParsers(tool, reasoning), TOKENIZER, None).message(request, reply)


def test_a_call_is_parsed() -> None:
    assert message(f"Let me add.\n{CALL}", "hermes") == {
        "role": "assistant",
        "content": "Let me add.\n",
        "tool_calls": CALLED,
    }
    assert message(CALL * 2, "hermes") == {"role": "assistant", "content": None, "tool_calls": CALLED * 2}


def test_reasoning_is_parsed() -> None:
    text = "<think>One and two.</think>Three."
    expected = {"role": "assistant", "content": "Three.", "reasoning": "One and two."}
    assert message(text, reasoning="deepseek_r1") == expected
    assert message(text, "hermes", "deepseek_r1") == expected


def test_both_are_parsed() -> None:
    text = f"<think>I add.</think>{CALL}"
    expected = {"role": "assistant", "content": None, "reasoning": "I add.", "tool_calls": CALLED}
    assert message(text, "hermes", "deepseek_r1") == expected


def test_arguments_have_the_types_that_the_tool_asks_for() -> None:
    call = "<tool_call>\n<function=add>\n<parameter=a>\n1\n</parameter>\n</function>\n</tool_call>"
    assert message(call, "qwen3_coder")["tool_calls"][0]["function"] == {"name": "add", "arguments": '{"a": 1}'}


@pytest.mark.parametrize("tool", ["hermes", "qwen3_coder"])
@pytest.mark.parametrize(
    "text",
    [
        "Three.",
        "",
        "Let me add. <tool_call>",
        'Let me add. <tool_call>\n{"name": "add", "arguments": {"a": 1',
        "<tool_call>\n{add(1, 2)}\n</tool_call> That was it.",
        "<tool_call>\n<function=add>\n<parameter=a>\n1",
        "</tool_call> \ufffd {} <think>",
    ],
)
def test_what_cannot_be_parsed_is_text(text: str, tool: str) -> None:
    read = message(text, tool)
    assert read == {"role": "assistant", "content": text} or "tool_calls" in read
    assert tool != "hermes" or "tool_calls" not in read


def test_a_broken_call_makes_all_of_them_text() -> None:
    text = f'{CALL}<tool_call>\n{{"name": "add", "arguments"\n</tool_call>'
    assert message(text, "hermes") == {"role": "assistant", "content": text}


def test_without_tools_calls_are_text() -> None:
    assert message(f"<think>I add.</think>{CALL}", "hermes", "deepseek_r1", tools=()) == {
        "role": "assistant",
        "content": CALL,
        "reasoning": "I add.",
    }


def test_without_parsers_all_is_text() -> None:
    assert message(f"<think>{CALL}") == {"role": "assistant", "content": f"<think>{CALL}"}


def test_an_unknown_parser_is_named_with_the_nearest() -> None:
    with pytest.raises(SpecProblem, match=r"no parser 'hermess'. Did you mean 'hermes'\?") as caught:
        message("", "hermess")
    assert caught.value.field == "rollout.toolParser"
    with pytest.raises(SpecProblem, match=r"Did you mean 'deepseek_r1'\?") as caught:
        message("", reasoning="deepseek-r1")
    assert caught.value.field == "rollout.reasoningParser"


def test_a_parser_that_needs_other_tokens_is_refused() -> None:
    with pytest.raises(SpecProblem, match="think start/end tokens") as caught:
        MessageParser(TurnParsers(None, "deepseek_r1"), tokenizer(), None)
    assert caught.value.field == "rollout.reasoningParser"
