"""Rows as prompts: columns, templates, and what a row or the spec may ask of them."""

import datetime
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longboat_crds.dataset import DatasetSpec, EvaluationSpec
from longboat_crds.model import ModelSpec
from longboat_crds.problems import SpecProblem
from longboat_crds.reasons import Reason
from longboat_runtime.data.prompts import Prompts, column, load_tokenizer
from longboat_runtime.data.references import with_template_text
from longboat_runtime.data.source import began
from tests.data.opening import STARTED, tokenizer_of

TEMPLATE = (
    "{% if tools %}{{ tools | tojson }}{% endif %}{% for m in messages %}<{{ m.role }}>{{ m.content }}<eos>{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% if not enable_thinking %}<think></think>{% endif %}{% endif %}"
)
QUESTION = [{"role": "user", "content": "hi"}]
TOOLS = [{"name": "look_up", "parameters": {}}]


def prompts(
    template: str | None = TEMPLATE, *, begins: bool = False, longest: int = 8192, bin_tokens: int = 8192, **spec: Any
) -> Prompts:
    """What renders rows with this template of the tokenizer, and these fields of the dataset."""
    dataset = DatasetSpec.model_validate({"files": {"paths": ["/x"]}, **spec})
    tokenizer = tokenizer_of(template or "", begins=begins)
    tokenizer.chat_template = template
    return Prompts(with_template_text(dataset, Path("/nowhere")), tokenizer, longest, 16, bin_tokens, STARTED)


def text(record: Mapping[str, Any], **options: Any) -> str:
    return prompts(**options).prompt(record, "line 7").text


def test_nested_values_are_found_by_path() -> None:
    record = {"reward_model": {"ground_truth": "42"}, "a.b": 1}
    assert column(record, "reward_model.ground_truth", "spec", "row 0") == "42"
    assert column(record, "a.b", "spec", "row 0") == 1
    assert column(record, None, "spec", "row 0") is None
    with pytest.raises(
        SpecProblem, match=r"No column 'reward_model\.nothing' in row 0\..* It has reward_model, a\.b\."
    ) as missing:
        column(record, "reward_model.nothing", "spec.dataset.columns.domain", "row 0")
    assert missing.value.field == "spec.dataset.columns.domain"


def test_tools_and_arguments_come_from_the_usual_columns_or_those_named() -> None:
    usual = {"prompt": QUESTION, "tools": TOOLS, "chat_template_kwargs": {"enable_thinking": True}}
    with_both = json.dumps(TOOLS) + "<user>hi<eos><assistant>"
    assert text(usual) == with_both
    own = {"prompt": QUESTION, "functions": TOOLS, "options": {"enable_thinking": True}}
    assert text(own, columns={"tools": "functions", "chatTemplateArguments": "options"}) == with_both
    off = {"tools": "", "chatTemplateArguments": ""}
    assert text(usual, columns=off) == text({"prompt": QUESTION}) == "<user>hi<eos><assistant><think></think>"
    assert text({"prompt": QUESTION, "tools": None}) == text({"prompt": QUESTION})
    with pytest.raises(SpecProblem, match="No column 'functions' in line 7"):
        text(usual, columns={"tools": "functions"})


def test_arguments_of_the_spec_are_for_all_rows_and_those_of_a_row_go_before() -> None:
    spec = {"chatTemplateArguments": {"enable_thinking": True}}
    assert text({"prompt": QUESTION}, **spec) == "<user>hi<eos><assistant>"
    row = {"prompt": QUESTION, "chat_template_kwargs": {"enable_thinking": False}}
    assert text(row, **spec) == "<user>hi<eos><assistant><think></think>"
    with pytest.raises(SpecProblem, match="It sets tokenize, which") as caught:
        prompts(chatTemplateArguments={"tokenize": False})
    assert caught.value.field == "spec.dataset.chatTemplateArguments"


@pytest.mark.parametrize("prompt", [QUESTION, "hi"])
def test_episodes_of_a_row_get_its_template_arguments(prompt: Any) -> None:
    dataset = DatasetSpec.model_validate({"files": {"paths": ["/x"]}, "chatTemplateArguments": {"depth": 1}})
    if isinstance(prompt, str):
        dataset = dataset.model_copy(update={"chat_template_arguments": {}})
    tokenizer = tokenizer_of("", begins=False)
    tokenizer.chat_template = TEMPLATE + "{{ depth }}"
    rendered = Prompts(dataset, tokenizer, 8192, 16, 8192, STARTED, episodes=True)
    row = {"prompt": prompt, "chat_template_kwargs": {"enable_thinking": True}}
    expected = {**dataset.chat_template_arguments, "enable_thinking": True}
    assert rendered.prompt(row, "line 7").arguments == expected


def test_a_system_prompt_begins_every_chat() -> None:
    assert text({"prompt": QUESTION}, systemPrompt="Be brief.").startswith("<system>Be brief.<eos><user>hi")
    own = [{"role": "system", "content": "Be long."}, *QUESTION]
    with pytest.raises(SpecProblem, match="line 7 has a system message of its own"):
        text({"prompt": own}, systemPrompt="Be brief.")


def test_text_becomes_a_users_message_where_asked() -> None:
    asked = {"asMessages": True, "chatTemplateArguments": {"enable_thinking": True}}
    assert text({"prompt": "hi"}, **asked) == "<user>hi<eos><assistant>"
    assert text({"q": "hi"}, promptTemplate="{{ q }}!", **asked) == "<user>hi!<eos><assistant>"
    prompt = prompts(asMessages=True).prompt({"prompt": "hi"}, "line 7")
    assert prompt.messages is None, "the row has none"


@pytest.mark.parametrize(
    "spec",
    [
        {"systemPrompt": "Be brief."},
        {"chatTemplate": {"text": TEMPLATE}},
        {"chatTemplateArguments": {"enable_thinking": True}},
        {"columns": {"tools": "tools"}},
        {"columns": {"chatTemplateArguments": "options"}},
    ],
)
def test_what_only_chats_can_have_is_refused_for_text(spec: dict[str, Any]) -> None:
    with pytest.raises(SpecProblem, match="The prompt of line 7 is text") as caught:
        text({"prompt": "hi"}, **spec)
    assert "asMessages" in caught.value.message
    assert text({"prompt": "hi", "tools": TOOLS}) == "hi", "the usual columns may be there for rewards"


def test_messages_as_json_text_are_refused_with_the_cure() -> None:
    with pytest.raises(SpecProblem, match=r"'prompt' of line 7 is text that holds messages as JSON.*json\.loads"):
        text({"prompt": json.dumps(QUESTION)})


@pytest.mark.parametrize(
    ("template", "row", "lost"),
    [
        ("{% for m in messages %}{{ m.content }}{% endfor %}", {"tools": TOOLS}, "it leaves out the tools look_up"),
        (TEMPLATE, {"chat_template_kwargs": {"thinking": False}}, "it doesn't use the arguments thinking"),
        ("{{ messages | length }}", {}, r"it leaves out the content of message \[0\] \(user\)"),
        ("{{ raise_exception('no') }}", {}, "no"),
    ],
)
def test_a_template_that_loses_something_of_a_row_is_refused(template: str, row: dict[str, Any], lost: str) -> None:
    with pytest.raises(SpecProblem, match=f"The chat template fails for line 7: {lost}"):
        text({"prompt": QUESTION, **row}, template=template)


def test_the_jobs_own_chat_template_takes_the_place_of_the_tokenizers(tmp_path: Path) -> None:
    own = "{% for m in messages %}[{{ m.content }}]{% endfor %}"
    assert text({"prompt": QUESTION}, chatTemplate={"text": own}) == "[hi]"
    assert text({"prompt": QUESTION}, template=None, chatTemplate={"text": own}) == "[hi]"
    (tmp_path / "maps" / "mine").mkdir(parents=True)
    for path in (tmp_path / "own.jinja", tmp_path / "maps" / "mine" / "own.jinja"):
        path.write_text(own)
    by_map = {"configMap": {"name": "mine", "key": "own.jinja"}}
    for given_ in ({"file": str(tmp_path / "own.jinja")}, by_map):
        dataset = DatasetSpec.model_validate({"files": {"paths": ["/x"]}, "chatTemplate": given_})
        read = with_template_text(dataset, tmp_path / "maps").chat_template
        assert read is not None
        assert read.text == own
    with pytest.raises(SpecProblem, match="can't be read") as caught:
        with_template_text(dataset, tmp_path)
    assert caught.value.field == "spec.dataset.chatTemplate.configMap"
    evaluation = EvaluationSpec.model_validate({"files": {"paths": ["/x"]}, "chatTemplate": by_map})
    with pytest.raises(SpecProblem) as caught:
        with_template_text(evaluation, tmp_path, "spec.dataset.evaluation")
    assert caught.value.field == "spec.dataset.evaluation.chatTemplate.configMap"
    with pytest.raises(SpecProblem, match=r"the tokenizer has no chat template.*chatTemplate"):
        text({"prompt": QUESTION}, template=None)


@given(text_=st.text(max_size=20), begins=st.booleans(), twice=st.integers(0, 2))
def test_text_has_the_begin_token_at_most_once_more_than_it_was_written(text_: str, begins: bool, twice: int) -> None:
    renders = prompts(begins=begins)
    written = "<bos>" * twice + text_.replace("<", "")
    begin = renders.tokens(renders.prompt({"prompt": "<bos>x"}, "line 7"), "line 7")[0]
    if not written and not begins:
        return
    ids = renders.tokens(renders.prompt({"prompt": written}, "line 7"), "line 7")
    assert ids.count(begin) == max(twice, int(begins))


def test_prompts_leave_room_for_the_response_in_a_bin() -> None:
    row = {"prompt": "x" * 49}
    for renders, field in (
        (prompts(longest=64, bin_tokens=100), "spec.model.maxLength"),
        (prompts(longest=100, bin_tokens=64), "spec.trainer.maxTokensPerBin"),
    ):
        assert renders.limit == 48
        renders.check({"prompt": "x" * 48}, "line 6")
        with pytest.raises(SpecProblem, match="The prompt of line 7 has 49 tokens; 64") as caught:
            renders.check(row, "line 7")
        assert (caught.value.reason, caught.value.field) == ("PromptTooLong", field)


def test_a_template_that_asks_for_the_time_gets_the_start_of_the_training() -> None:
    clock = "{{ strftime_now('%d %b %Y') }}{% for m in messages %}{{ m.content }}{% endfor %}"
    assert text({"prompt": QUESTION}, template=clock) == "01 Mar 2025hi"
    assert began({"source": {"started": STARTED.isoformat()}}) == STARTED
    now = datetime.datetime.now(datetime.UTC)
    for state in (None, {"source": {}}):
        assert began(state) >= now


@pytest.mark.parametrize("architecture", ["qwen3", "llama", "gemma3_text", "gpt2"])
def test_a_model_without_a_tokenizer_is_refused(architecture: str, tmp_path: Path) -> None:
    """Transformers makes one of special tokens for some of them, which encodes every text as nothing."""
    (tmp_path / "config.json").write_text(json.dumps({"model_type": architecture, "max_position_embeddings": 64}))
    with pytest.raises(SpecProblem, match="has no tokenizer that can be loaded") as caught:
        load_tokenizer(ModelSpec(path=str(tmp_path), max_length=64))
    assert (caught.value.reason, caught.value.field) == (Reason.MODEL_INVALID, "spec.model.path")
    assert len(caught.value.message.splitlines()) == 1
