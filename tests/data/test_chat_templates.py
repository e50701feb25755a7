"""Chat templates that TRL ships, and what a row may ask of them: the prompt is what TRL makes of the row, or the row is refused."""

import copy
import json
import re
from pathlib import Path
from typing import Any

import pytest
import trl
from transformers import PreTrainedTokenizerBase
from trl.data_utils import apply_chat_template
from trl.trainer.utils import remove_none_values

from longboat_crds.dataset import DatasetSpec
from longboat_crds.problems import SpecProblem
from longboat_runtime.data.prompts import Prompt, Prompts
from tests.data.opening import STARTED, tokenizer_of

TEMPLATES = {
    path.stem: path.read_text()
    for path in sorted(Path(trl.__file__).parent.joinpath("chat_templates").glob("*.jinja"))
    if not path.stem.endswith("_training")
}
# Those of models with images, which take contents as parts only.
PARTS_ONLY = {"idefics3", "llava_next", "smolvlm"}

TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Says what the weather is.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


def says(role: str, content: Any, **more: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **more}


def called(content: str | None, **nulls: None) -> dict[str, Any]:
    function = {"name": "get_weather", "arguments": {"city": "Rome", **nulls}}
    return says("assistant", content, tool_calls=[{"type": "function", "function": function}])


QUESTION, RESULT = says("user", "What is 2+2?"), says("tool", "sunny", name="get_weather")
ROWS: dict[str, dict[str, Any]] = {
    "question": {"prompt": [QUESTION]},
    "system": {"prompt": [says("system", "Be brief."), QUESTION]},
    "turns": {"prompt": [says("user", "Hello"), says("assistant", "Hi!"), QUESTION]},
    "reasoning": {
        "prompt": [says("user", "Hello"), says("assistant", "<think>\nhm\n</think>\n\nHi!"), QUESTION],
    },
    "spaces": {"prompt": [says("user", "  What\n is 2+2? é😀 \n")]},
    "parts": {
        "prompt": [
            says("user", [{"type": "text", "text": "What is "}, {"type": "text", "text": "2+2?", "image": None}])
        ]
    },
    "prefill": {"prompt": [QUESTION, says("assistant", "The answer is")]},
    "thinking prefill": {"prompt": [QUESTION, says("assistant", "Let me think.\n<think>")]},
    "tools": {"prompt": [QUESTION], "tools": [TOOL]},
    "no tools": {"prompt": [QUESTION], "tools": []},
    "tools as text": {"prompt": [QUESTION], "tools": json.dumps([TOOL])},
    "result": {"prompt": [QUESTION, called(""), RESULT], "tools": [TOOL]},
    "nulls": {"prompt": [{**QUESTION, "name": None}, called(None, unit=None), {**RESULT, "id": None}], "tools": [TOOL]},
    "arguments": {"prompt": [QUESTION], "chat_template_kwargs": {"enable_thinking": False}},
    "system last": {"prompt": [QUESTION, says("system", "Be brief.")]},
}
# Rows that every template for text takes.
ALWAYS = ("question", "parts", "spaces", "no tools")
EMPTY_THINKING = re.compile(r"<think>\s*</think>\s*")


def trl_prompt(tokenizer: PreTrainedTokenizerBase, row: dict[str, Any]) -> str | None:
    """What TRL makes of the row once its nulls are gone and its parts are joined; None if it raises."""
    row = remove_none_values(copy.deepcopy(row))
    for message in row["prompt"]:
        if isinstance(message.get("content"), list):
            message["content"] = "".join(part["text"] for part in message["content"])
    tools = row.pop("tools", None)
    tools = json.loads(tools) if isinstance(tools, str) else tools
    try:
        return str(apply_chat_template(row, tokenizer, tools, strftime_now=STARTED.strftime)["prompt"])
    except Exception:  # noqa: BLE001 - templates raise what they like
        return None


def prompt_or_refusal(prompts: Prompts, row: dict[str, Any]) -> Prompt | SpecProblem:
    try:
        return prompts.prompt(row, "line 7")
    except SpecProblem as problem:
        return problem


@pytest.mark.parametrize("name", TEMPLATES)
def test_prompts_are_those_of_trl_or_refused(name: str) -> None:
    tokenizer = tokenizer_of(TEMPLATES[name])
    prompts = Prompts(DatasetSpec.model_validate({"files": {"paths": ["/x"]}}), tokenizer, 8192, 16, 8192, STARTED)
    for kind, row in ROWS.items():
        expected = trl_prompt(tokenizer, row)
        prompt = prompt_or_refusal(prompts, row)
        if isinstance(prompt, SpecProblem):
            assert "line 7" in prompt.message
            assert kind not in ALWAYS or name in PARTS_ONLY, prompt.message
            continue
        assert expected is not None, f"{name} takes {kind}, which TRL refuses"
        if kind.endswith("prefill"):
            prefill = row["prompt"][-1]["content"]
            assert prompt.prefill == prefill
            # TRL leaves the empty think block that some templates put before a last message, though they don't before an answer.
            if not EMPTY_THINKING.search(prompts.prompt(ROWS["question"], "line 8").text):
                expected = EMPTY_THINKING.sub("", expected.removesuffix(prefill)) + prefill
            assert prompt.text == expected, f"{name}, {kind}"
        else:
            assert prompt.text == expected, f"{name}, {kind}"
        own = tokenizer(prompt.text, add_special_tokens=False)["input_ids"]
        assert prompts.tokens(prompt, "line 7") == tuple(own)


def test_most_templates_take_most_rows() -> None:
    """Or the test above would pass with everything refused."""
    taken = dict.fromkeys(ROWS, 0)
    for template in TEMPLATES.values():
        tokenizer = tokenizer_of(template)
        prompts = Prompts(DatasetSpec.model_validate({"files": {"paths": ["/x"]}}), tokenizer, 8192, 16, 8192, STARTED)
        for kind, row in ROWS.items():
            taken[kind] += isinstance(prompt_or_refusal(prompts, row), Prompt)
    assert taken.pop("system last") == 0
    # Many templates know no `enable_thinking`.
    assert taken.pop("arguments") >= 16
    assert min(taken.values()) >= 25, taken
