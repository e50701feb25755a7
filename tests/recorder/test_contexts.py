"""Token ids of contexts, by the chat templates that TRL ships."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trl

from longboat_runtime.recorder.messages import conversation
from longboat_runtime.recorder.refusals import Refused
from longboat_runtime.samples import FinishReason, VersionSpan
from longboat_runtime.turns import TurnReply
from tests.recorder.world import TOOLS, contexts_of, says, stop_ids, tokenizer_of

TEXT_TEMPLATES = [
    path.stem
    for path in sorted(Path(trl.__file__).parent.joinpath("chat_templates").glob("*.jinja"))
    if not path.stem.endswith("_training")
    and not any(kind in path.stem for kind in ("vl", "smolvlm", "idefics", "llava", "diffusion"))
]
# Those that render no result of a tool behind a call, or nothing that tells where the call ends.
NO_RESULTS = {
    *("cohere", "cohere2", "deepseek_r1_distill", "deepseekv3", "gemma", "gemma3", "lfm2", "llama3", "phi3", "phi3_5"),
}
QUESTION = [says("system", "Be brief."), says("user", "Where to?")]


def called(**arguments: Any) -> dict[str, Any]:
    function = {"name": "look", "arguments": json.dumps(arguments)}
    return says("assistant", None, tool_calls=[{"id": "abcdef123", "type": "function", "function": function}])


def drawn(name: str, text: str, stop: str = "") -> TurnReply:
    tokenizer = tokenizer_of(name)
    ids = tokenizer(text + stop, add_special_tokens=False)["input_ids"]
    reason = FinishReason.STOP if stop else FinishReason.LENGTH
    message = says("assistant", text)
    return TurnReply(
        np.asarray(ids, np.int32), np.zeros(len(ids), np.float32), (VersionSpan(0, 0, len(ids)),), reason, text, message
    )


def read(messages: list[Any]) -> list[Any]:
    return [sent.message for sent in conversation(messages)]


def messages_of(name: str, messages: list[Any]) -> list[Any]:
    """Some templates refuse a system message."""
    return read(messages[1:] if name == "gemma" else messages)


@pytest.mark.parametrize("name", TEXT_TEMPLATES)
def test_a_user_message_is_appended(name: str) -> None:
    """Whatever stands before: reasoning that the template drops there, or an empty think block that it adds to a last reply."""
    suffixes = []
    for history in (
        QUESTION,
        [*QUESTION, says("assistant", "<think>\nhm\n</think>\n\nThere."), says("user", "Really?")],
    ):
        messages = messages_of(name, [*history, says("assistant", "North."), says("user", "And then?")])
        suffix = contexts_of(name).suffix(messages, len(messages) - 1, None, {}, drawn(name, "North."))
        assert suffix is not None
        suffixes.append(tokenizer_of(name).decode(suffix))
    assert suffixes[0] == suffixes[1]
    assert "And then?" in suffixes[0]
    assert "North" not in suffixes[0]


@pytest.mark.parametrize("name", TEXT_TEMPLATES)
def test_results_of_tools_are_appended_where_the_template_has_them(name: str) -> None:
    messages = messages_of(name, [*QUESTION, called(x="a <b>", n=1), says("tool", "e", tool_call_id="abcdef123")])
    contexts = contexts_of(name)
    suffix = contexts.suffix(messages, len(messages) - 1, TOOLS, {}, drawn(name, "whatever"))
    assert (suffix is None) == (name in NO_RESULTS)
    assert contexts.appends(messages[:-2], TOOLS, {}) == (name not in NO_RESULTS)
    if suffix is not None:
        text = tokenizer_of(name).decode(suffix)
        assert "e" in text
        assert "arguments" not in text
        assert "</" not in text.partition("e")[0], "what closes the call was drawn"


@pytest.mark.parametrize("name", ["llama3_1", "qwen2_5", "glm4moe", "gemma4", "lfm2_v2"])
@pytest.mark.parametrize("tools", [None, TOOLS])
def test_a_reply_drawn_as_the_template_has_it_gives_the_context_that_the_template_makes(
    name: str, tools: list[dict[str, Any]] | None
) -> None:
    """Token by token what a server would have, where a server's history has all that the model drew."""
    contexts, tokenizer = contexts_of(name), tokenizer_of(name)
    reply = says("assistant", "North.") if tools is None else called(x="a")
    new = says("user", "And then?") if tools is None else says("tool", "wall", tool_call_id="abcdef123")
    before, after = read(QUESTION), read([*QUESTION, reply, new])
    begun, whole = contexts.whole(before, tools, {}).tolist(), contexts.whole(after, tools, {}).tolist()
    assert whole[: len(begun)] == begun
    for stop in tokenizer.convert_ids_to_tokens(stop_ids(name)):
        # Where the model's turn ends, and the token with which it does.
        [*places] = [place for place, token in enumerate(whole[len(begun) :]) if token in stop_ids(name)]
        end = len(begun) + places[0]
        turn = TurnReply(
            np.asarray(whole[len(begun) : end + 1], np.int32), np.zeros(1), (), FinishReason.STOP, "", reply
        )
        suffix = contexts.suffix(after, len(before) + 1, tools, {}, turn)
        assert suffix is not None, stop
        assert [*whole[: end + 1], *suffix.tolist()] == whole


@pytest.mark.parametrize(
    ("text", "stop", "suffix"),
    [
        ("North", "<|im_end|>", "\n<|im_start|>user\nAnd?<|im_end|>\n<|im_start|>assistant\n"),
        ("North", "", "<|im_end|>\n<|im_start|>user\nAnd?<|im_end|>\n<|im_start|>assistant\n"),
        ("North", "<|endoftext|>", "<|im_end|>\n<|im_start|>user\nAnd?<|im_end|>\n<|im_start|>assistant\n"),
    ],
)
def test_the_end_of_a_turn_is_there_once(text: str, stop: str, suffix: str) -> None:
    messages = read([*QUESTION, says("assistant", "North"), says("user", "And?")])
    ids = contexts_of("qwen3").suffix(messages, 3, None, {}, drawn("qwen3", text, stop))
    assert ids is not None
    assert tokenizer_of("qwen3").decode(ids) == suffix


def test_a_system_message_that_the_template_moves_to_the_front_is_not_appended() -> None:
    messages = read([*QUESTION, says("assistant", "North."), says("system", "Hurry."), says("user", "And?")])
    assert contexts_of("deepseekv3").suffix(messages, 3, None, {}, drawn("deepseekv3", "North.")) is None


def test_what_a_template_leaves_out_is_refused() -> None:
    with pytest.raises(Refused, match="leaves out the tools look, move"):
        contexts_of("phi3").whole(read(QUESTION), TOOLS, {})
    with pytest.raises(Refused, match="doesn't use the arguments thinking"):
        contexts_of("qwen3").whole(read(QUESTION), None, {"thinking": True})
    with pytest.raises(Refused, match="must alternate"):
        contexts_of("gemma3").whole(read([*QUESTION, says("user", "Hm?")]), None, {})
