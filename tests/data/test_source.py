"""Datasets as users bring them: the prompts they give, and the errors when something is wrong."""

import gzip
import json
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from structlog.testing import capture_logs

from longboat_crds.dataset import DatasetSpec
from longboat_crds.model import ModelSpec
from longboat_crds.problems import SpecProblem
from longboat_crds.reasons import Reason
from longboat_crds.rewards import RewardSpec
from longboat_crds.rounds import DomainQuota
from longboat_runtime.data import source as sources
from longboat_runtime.data.source import TablePrompts
from longboat_runtime.reward.rows import row_check
from longboat_runtime.samples import PromptId, Row
from tests.data.opening import open_evaluation, open_source
from tests.support.tiny_model import build_tiny_model

Rows = list[Mapping[str, Any]]


def drawn_rows(source: TablePrompts, count: int, domain: str = "") -> list[Row]:
    """The next rows."""
    return [source.row(prompt) for prompt in source.draw(count, domain)]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> ModelSpec:
    return ModelSpec(path=str(build_tiny_model(tmp_path_factory.mktemp("model"), max_length=64)))


@pytest.fixture
def open_rows(model: ModelSpec, tmp_path: Path) -> Callable[..., TablePrompts]:
    def open_rows(rows: Rows, max_tokens: int = 32, quotas: Sequence[DomainQuota] = (), **spec: Any) -> TablePrompts:
        path = tmp_path / "rows.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        dataset = DatasetSpec.model_validate({"files": {"paths": [str(path)]}, **spec})
        return open_source(dataset, model, max_tokens, quotas)

    return open_rows


def test_rows_of_jsonl_become_prompts(open_rows: Callable[..., TablePrompts]) -> None:
    source = open_rows(
        [
            {"prompt": "1+1=", "answer": {"value": 2}, "kind": "sum"},
            {"prompt": "2*3=", "answer": {"value": 6}, "kind": "product"},
        ],
        columns={"groundTruth": "answer.value", "domain": "kind"},
        shuffle=False,
    )
    first, second = drawn_rows(source, 2)
    assert (first.text, first.ground_truth, first.domain) == ("1+1=", 2, "sum")
    assert (second.text, second.ground_truth, second.domain) == ("2*3=", 6, "product")
    assert len(first.token_ids) == 4
    assert first.columns["answer"] == {"value": 2}
    assert source.row(PromptId(0, 1)) == second


def test_parquet_and_several_files_are_numbered_through(model: ModelSpec, tmp_path: Path) -> None:
    paths = [tmp_path / "a.parquet", tmp_path / "b.parquet"]
    for path, prompts in zip(paths, (["a", "b"], ["c"]), strict=True):
        pq.write_table(pa.table({"prompt": prompts, "raw": [b"x"] * len(prompts)}), path)
    spec = DatasetSpec.model_validate(
        {"files": {"paths": [str(p) for p in paths], "format": "Parquet"}, "shuffle": False}
    )
    rows = drawn_rows(open_source(spec, model, 32), 4)
    assert [(row.prompt.epoch, row.prompt.row, row.text) for row in rows] == [
        (0, 0, "a"),
        (0, 1, "b"),
        (0, 2, "c"),
        (1, 0, "a"),
    ]
    assert rows[0].columns["raw"] == "x"


def test_chat_messages_use_the_chat_template(open_rows: Callable[..., TablePrompts]) -> None:
    (row,) = drawn_rows(open_rows([{"prompt": [{"role": "user", "content": "hi"}]}]), 1)
    assert row.text == "<user>hi<assistant>"
    assert len(row.token_ids) == 4


def test_prompt_template_sees_all_columns(open_rows: Callable[..., TablePrompts]) -> None:
    (row,) = drawn_rows(open_rows([{"a": 1, "b": 2}], promptTemplate="{{ a }}+{{ b }}="), 1)
    assert row.text == "1+2="


def test_a_restart_continues_with_the_next_row(open_rows: Callable[..., TablePrompts]) -> None:
    rows = [{"prompt": str(i)} for i in range(7)]
    whole, first, resumed = (open_rows(rows, shuffleSeed=5) for _ in range(3))
    expected = drawn_rows(whole, 20)
    begun = drawn_rows(first, 9)
    resumed.restore(json.loads(json.dumps(first.state())))
    assert begun + drawn_rows(resumed, 11) == expected
    changed = open_rows(rows[:6], shuffleSeed=5)
    with pytest.raises(SpecProblem, match=r"made with 7 rows.*now there are 6 rows"):
        changed.restore(first.state())


TOPICS = [{"prompt": str(i), "topic": "abb"[i % 3]} for i in range(9)]
BY_TOPIC = {"columns": {"domain": "topic"}}


def quotas(*domains: str) -> list[DomainQuota]:
    return [DomainQuota(domain=domain, prompts=1) for domain in domains]


def test_every_domain_is_drawn_by_itself_in_the_order_of_the_seed(open_rows: Callable[..., TablePrompts]) -> None:
    rows = [row.prompt.row for row in drawn_rows(open_rows(TOPICS, shuffleSeed=5), 9)]
    source = open_rows(TOPICS, shuffleSeed=5, quotas=quotas("a", "b"), **BY_TOPIC)
    a, b = drawn_rows(source, 3, "a"), drawn_rows(source, 6, "b")
    assert [row.prompt.row for row in a] == [row for row in rows if row % 3 == 0]
    assert [row.prompt.row for row in b] == [row for row in rows if row % 3]
    assert {row.domain for row in a} == {"a"}
    assert [row.prompt.epoch for row in drawn_rows(source, 4, "a")] == [1, 1, 1, 2]
    assert [row.prompt.epoch for row in drawn_rows(source, 1, "b")] == [1], "its epoch ends when its own rows do"


def test_cursors_of_domains_are_kept(open_rows: Callable[..., TablePrompts]) -> None:
    open_ = partial(open_rows, TOPICS, shuffleSeed=5, quotas=quotas("a", "b"), **BY_TOPIC)
    whole, first, resumed = open_(), open_(), open_()
    expected = drawn_rows(whole, 7, "a"), drawn_rows(whole, 9, "b")
    begun = drawn_rows(first, 2, "a"), drawn_rows(first, 5, "b")
    resumed.restore(json.loads(json.dumps(first.state())))
    assert (begun[0] + drawn_rows(resumed, 5, "a"), begun[1] + drawn_rows(resumed, 4, "b")) == expected
    with pytest.raises(SpecProblem, match="quotas for a, b; now there are quotas for no domain") as caught:
        open_rows(TOPICS, shuffleSeed=5).restore(first.state())
    assert caught.value.field == "spec.rounds.quotas"


@pytest.mark.parametrize(
    ("domains", "field", "cure"),
    [
        (
            ("a", "b", "c"),
            "spec.rounds.quotas[2].domain",
            "No row of the dataset belongs to domain 'c'; there are 'b', 'a'.",
        ),
        (("b",), "spec.rounds.quotas", "3 rows belong to domains without a quota, and would never be drawn: 'a'."),
    ],
)
def test_domains_that_do_not_match_the_quotas_are_named(
    open_rows: Callable[..., TablePrompts], domains: tuple[str, ...], field: str, cure: str
) -> None:
    with pytest.raises(SpecProblem, match=re.escape(cure)) as caught:
        open_rows(TOPICS, quotas=quotas(*domains), **BY_TOPIC)
    assert (caught.value.field, caught.value.reason) == (field, "DomainsMismatch")


def test_a_reasoning_gym_task_is_one_domain(model: ModelSpec) -> None:
    gym = {"task": "chain_sum", "size": 100, "config": {"max_terms": 2, "max_digits": 1}}
    spec = DatasetSpec.model_validate(
        {"reasoningGym": gym, "columns": {"domain": "domain"}, "promptTemplate": "{{ metadata.expression }}="}
    )
    source = open_source(spec, model, 16, quotas("chain_sum"))
    assert {row.domain for row in drawn_rows(source, 5, "chain_sum")} == {"chain_sum"}
    with pytest.raises(SpecProblem, match="'chain_sum'"):
        open_source(spec, model, 16, quotas("sums"))


def test_evaluation_takes_the_first_rows(model: ModelSpec, tmp_path: Path) -> None:
    for name in ("train", "test"):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps({"prompt": f"{name}{i}"}) + "\n" for i in range(5)))
    spec = DatasetSpec.model_validate(
        {
            "files": {"paths": [f"{tmp_path}/train.jsonl"]},
            "evaluation": {"files": {"paths": [f"{tmp_path}/test.jsonl"]}, "maxPrompts": 3},
        }
    )
    assert [row.text for row in open_evaluation(spec, model, 32)] == ["test0", "test1", "test2"]
    assert open_evaluation(spec.model_copy(update={"evaluation": None}), model, 32) == []


def held_out(model: ModelSpec, directory: Path, rows: Rows, evaluation: Mapping[str, Any], **dataset: Any) -> list[Row]:
    """The rows of an evaluation, each rendered; those of the training have other columns. Training's maxTokens are 32."""
    (directory / "test.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    spec = DatasetSpec.model_validate(
        {
            "files": {"paths": [f"{directory}/train.jsonl"]},
            "promptTemplate": "{{ q }}",
            "columns": {"groundTruth": "a", "domain": "d"},
            "evaluation": {"files": {"paths": [f"{directory}/test.jsonl"]}, **evaluation},
            **dataset,
        }
    )
    return open_evaluation(spec, model, 32)


OWN = {"prompt": "problem", "groundTruth": "answer", "domain": "kind"}


def test_held_out_rows_may_have_columns_and_templates_of_their_own(model: ModelSpec, tmp_path: Path) -> None:
    rows = [{"problem": "1+1", "answer": "2", "kind": "sums"}]
    (row,) = held_out(model, tmp_path, rows, {"columns": OWN, "promptTemplate": "{{ problem }}="})
    assert (row.text, row.ground_truth, row.domain) == ("1+1=", "2", "sums")
    (row,) = held_out(model, tmp_path, rows, {"columns": OWN, "promptTemplate": ""})
    assert row.text == "1+1"
    chat = {"chatTemplate": {"text": "{% for m in messages %}[{{ m.content }}]{% endfor %}"}}
    (row,) = held_out(model, tmp_path, rows, {"columns": OWN, "promptTemplate": "", **chat}, asMessages=True)
    assert row.text == "[1+1]"
    (row,) = held_out(model, tmp_path, [{"q": "1+1", "a": "2", "d": "sums"}], chat, asMessages=True)
    assert (row.text, row.ground_truth) == ("[1+1]", "2")


@pytest.mark.parametrize(
    ("evaluation", "field"),
    [
        ({"columns": OWN}, "spec.dataset.promptTemplate"),
        ({"promptTemplate": "{{ problem }}"}, "spec.dataset.columns.domain"),
        ({"promptTemplate": "{{ proble }}"}, "spec.dataset.evaluation.promptTemplate"),
        ({"promptTemplate": "{{ problem"}, "spec.dataset.evaluation.promptTemplate"),
        ({"promptTemplate": "", "columns": {"prompt": "question"}}, "spec.dataset.evaluation.columns.prompt"),
        ({"promptTemplate": "", "columns": {**OWN, "domain": "sort"}}, "spec.dataset.evaluation.columns.domain"),
        (
            {"promptTemplate": "", "columns": OWN, "chatTemplate": {"text": "{{ messages }}"}},
            "spec.dataset.evaluation.chatTemplate",
        ),
    ],
)
def test_errors_name_the_field_that_held_out_rows_were_read_by(
    model: ModelSpec, tmp_path: Path, evaluation: Mapping[str, Any], field: str
) -> None:
    with pytest.raises(SpecProblem) as caught:
        held_out(model, tmp_path, [{"problem": "1+1", "answer": "2", "kind": "sums"}], evaluation)
    assert caught.value.field == field


def test_held_out_prompts_leave_room_for_the_evaluations_own_longest_response(model: ModelSpec, tmp_path: Path) -> None:
    rows = [{"q": "x" * 40, "a": "2", "d": "sums"}]
    with pytest.raises(SpecProblem, match=r"lower spec\.rollout\.sampling\.maxTokens"):
        held_out(model, tmp_path, rows, {})
    assert held_out(model, tmp_path, rows, {"maxTokens": 24})
    with pytest.raises(SpecProblem, match=r"lower spec\.dataset\.evaluation\.maxTokens"):
        held_out(model, tmp_path, rows, {"maxTokens": 25})
    with pytest.raises(SpecProblem, match="leave no room") as caught:
        held_out(model, tmp_path, rows, {"maxTokens": 64})
    assert caught.value.field == "spec.dataset.evaluation.maxTokens"


def test_reasoning_gym_rows_name_their_origin(model: ModelSpec) -> None:
    spec = DatasetSpec.model_validate(
        {
            "reasoningGym": {"task": "chain_sum", "size": 20, "seed": 3, "config": {"max_terms": 2, "max_digits": 1}},
            "columns": {"groundTruth": "answer", "domain": "domain"},
            "promptTemplate": "{{ metadata.expression }}=",
        }
    )
    (row,) = drawn_rows(open_source(spec, model, 32), 1)
    assert row.domain == "chain_sum"
    assert int(row.ground_truth) == eval(row.text[:-1])  # noqa: S307 - an arithmetic expression of the task
    assert row.columns["reasoning_gym"]["row"] == row.prompt.row


@pytest.mark.parametrize(("seed", "refused"), [(1, True), (19, True), (20, False), (1000, False)])
def test_held_out_rows_that_are_trained_are_refused(model: ModelSpec, seed: int, refused: bool) -> None:
    gym = {"task": "chain_sum", "size": 20, "seed": 0, "config": {"min_terms": 3, "min_digits": 2}}
    spec = DatasetSpec.model_validate(
        {
            "reasoningGym": gym,
            "promptTemplate": "{{ metadata.expression }}=",
            "evaluation": {"reasoningGym": {**gym, "seed": seed, "size": 10}},
        }
    )
    if refused:
        with pytest.raises(SpecProblem, match="Set it to 20 or more") as caught:
            open_evaluation(spec, model, 16)
        assert caught.value.field == "spec.dataset.evaluation.reasoningGym.seed"
        return
    trained = {row.text for row in drawn_rows(open_source(spec, model, 16), 20)}
    assert not trained & {row.text for row in open_evaluation(spec, model, 16)}


@pytest.mark.parametrize(
    ("spec", "rows", "reason", "message"),
    [
        (
            {},
            [{"promt": "hi"}],
            "DatasetColumnMissing",
            r"No column 'prompt' in .*line 1\. Did you mean 'promt'\? It has promt\.",
        ),
        ({}, [{"prompt": "a"}, {"x": 1}], "DatasetColumnMissing", "line 2"),
        ({"columns": {"groundTruth": "a.b"}}, [{"prompt": "hi", "a": 1}], "DatasetColumnMissing", "No column 'a.b'"),
        ({"promptTemplate": "{{ a"}, [{"prompt": "hi"}], "PromptTemplateInvalid", "Line 1"),
        (
            {"promptTemplate": "{{ a }}"},
            [{"prompt": "hi"}],
            "PromptTemplateInvalid",
            "'a' is undefined.*columns prompt",
        ),
        ({"promptTemplate": "{{ ''.__class__.__mro__ }}"}, [{"prompt": "hi"}], "PromptTemplateInvalid", "unsafe"),
        (
            {},
            [{"prompt": "ok"}, {"prompt": "x" * 33}],
            "PromptTooLong",
            r"line 2 has 33 tokens; 64 \(model\.maxLength\) - 32 \(maxTokens\)",
        ),
        ({}, [{"prompt": ""}], "DatasetInvalid", "line 1 has no tokens"),
        ({}, [{"prompt": 5}], "DatasetInvalid", "neither text nor a list of messages"),
        ({}, [], "DatasetEmpty", "No rows"),
    ],
)
def test_bad_rows_are_named_with_their_cure(
    open_rows: Callable[..., TablePrompts], spec: dict[str, Any], rows: Rows, reason: str, message: str
) -> None:
    with pytest.raises(SpecProblem, match=message) as caught:
        open_rows(rows, **spec)
    assert caught.value.reason == reason
    assert caught.value.field is not None


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"prompt": "a"}\n\n{"prompt": \n', "line 3 is not JSON"),
        (b'["a"]\n', "line 1 is a JSON list"),
        (b"\xff\n", "line 1 is not JSON"),
    ],
)
def test_bad_lines_are_named(model: ModelSpec, tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(content)
    with pytest.raises(SpecProblem, match=message) as caught:
        open_source(DatasetSpec.model_validate({"files": {"paths": [str(path)]}}), model, 32)
    assert caught.value.field == "spec.dataset.files.paths[0]"


@pytest.mark.parametrize(
    "row",
    [
        {"prompt": "smile \ud83d"},
        {"prompt": [{"role": "user", "content": "\udc00"}]},
        {"prompt": [{"role": "user", "content": "a\ud800b"}, {"role": "assistant", "content": "so"}]},
    ],
)
def test_rows_with_half_a_character_are_named(open_rows: Callable[..., TablePrompts], row: dict[str, Any]) -> None:
    with pytest.raises(SpecProblem, match=r"rows\.jsonl line 2 can't be read \(UnicodeEncodeError") as caught:
        open_rows([{"prompt": "a"}, row])
    assert caught.value.reason is Reason.DATASET_INVALID


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"prompt": "a", "x": ' + b"[" * 5000 + b"]" * 5000 + b"}\n", "line 1 is nested too deeply"),
        (b'[\n{"prompt": "a"}\n]\n', "an array becomes such lines by"),
        (gzip.compress(b'{"prompt": "a"}\n', mtime=0), "It is compressed: `gunzip rows.jsonl`"),
        (b"PAR1abc\n", "It is Parquet"),
    ],
    ids=["deep", "array", "gzip", "parquet"],
)
def test_other_formats_are_named_with_their_cure(
    model: ModelSpec, tmp_path: Path, content: bytes, message: str
) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(content)
    with pytest.raises(SpecProblem, match=message) as caught:
        open_source(DatasetSpec.model_validate({"files": {"paths": [str(path)]}}), model, 32)
    assert caught.value.reason is Reason.DATASET_INVALID


@pytest.mark.parametrize("place", [slice(-4, None), slice(4, 40)], ids=["magic", "page"])
def test_damaged_parquet_is_named(model: ModelSpec, tmp_path: Path, place: slice) -> None:
    path = tmp_path / "rows.parquet"
    pq.write_table(pa.table({"prompt": ["a"] * 100}), path)
    content = bytearray(path.read_bytes())
    content[place] = b"\xff" * len(content[place])
    path.write_bytes(content)
    with pytest.raises(SpecProblem, match="or a damaged one") as caught:
        open_source(DatasetSpec.model_validate({"files": {"paths": [str(path)], "format": "Parquet"}}), model, 32)
    assert (caught.value.reason, caught.value.field) == (Reason.DATASET_INVALID, "spec.dataset.files.paths[0]")


@pytest.mark.parametrize(
    ("spec", "field", "message"),
    [
        ({"files": {"paths": ["/nothing.jsonl"]}}, "spec.dataset.files.paths[0]", "not there"),
        ({"reasoningGym": {"task": "chain_sun"}}, "spec.dataset.reasoningGym.task", "Did you mean 'chain_sum'"),
        (
            {"reasoningGym": {"task": "chain_sum", "config": {"min_term": 2}}},
            "spec.dataset.reasoningGym.config.min_term",
            "'min_terms'",
        ),
    ],
)
def test_missing_sources_are_named(model: ModelSpec, spec: dict[str, Any], field: str, message: str) -> None:
    with pytest.raises(SpecProblem, match=message) as caught:
        open_source(DatasetSpec.model_validate(spec), model, 32)
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("model_spec", "max_tokens", "field"),
    [
        ({"path": "/nowhere"}, 8, "spec.model.path"),
        ({"maxLength": 65}, 8, "spec.model.maxLength"),
        ({"maxLength": 32}, 32, "spec.rollout.sampling.maxTokens"),
    ],
)
def test_lengths_the_model_cannot_hold_are_refused(
    model: ModelSpec, tmp_path: Path, model_spec: dict[str, Any], max_tokens: int, field: str
) -> None:
    (tmp_path / "rows.jsonl").write_text('{"prompt": "a"}\n')
    spec = DatasetSpec.model_validate({"files": {"paths": [f"{tmp_path}/rows.jsonl"]}})
    with pytest.raises(SpecProblem) as caught:
        open_source(spec, ModelSpec.model_validate({"path": model.path, **model_spec}), max_tokens)
    assert caught.value.field == field


LONG = "x" * 2000
MIXED = [{"prompt": LONG if number % 3 == 0 else f"row {number}", "topic": "ab"[number % 2]} for number in range(12)]
SKIP = {"tooLongPrompts": "Skip"}


def test_rows_that_are_too_long_are_never_drawn_and_all_others_once_an_epoch(
    open_rows: Callable[..., TablePrompts],
) -> None:
    source = open_rows(MIXED, **SKIP)
    prompts = [row.prompt for row in drawn_rows(source, 24)]
    for epoch, drawn in ((0, prompts[:8]), (1, prompts[8:16]), (2, prompts[16:])):
        assert sorted(drawn) == [PromptId(epoch, row) for row in range(12) if row % 3]
    assert source.skipped == 4


def test_rows_that_are_skipped_change_nothing_about_the_order_of_the_others(
    open_rows: Callable[..., TablePrompts],
) -> None:
    whole = open_rows([{"prompt": "short"}] * 12)
    expected = [row.prompt for row in drawn_rows(whole, 36) if row.prompt.row % 3]
    assert [row.prompt for row in drawn_rows(open_rows(MIXED, **SKIP), 24)] == expected
    assert whole.skipped is None


@pytest.mark.parametrize("drawn", range(20))
def test_a_restart_skips_the_same_rows_and_continues_with_the_next_one(
    open_rows: Callable[..., TablePrompts], drawn: int
) -> None:
    expected = drawn_rows(open_rows(MIXED, **SKIP), 24)
    first, resumed = open_rows(MIXED, **SKIP), open_rows(MIXED, **SKIP)
    begun = drawn_rows(first, drawn)
    resumed.restore(json.loads(json.dumps(first.state())))
    assert begun + drawn_rows(resumed, 24 - drawn) == expected
    assert resumed.skipped == 4


def test_domains_skip_their_own_rows(open_rows: Callable[..., TablePrompts]) -> None:
    source = open_rows(MIXED, quotas=quotas("a", "b"), columns={"domain": "topic"}, **SKIP)
    for domain, odd in (("a", 0), ("b", 1)):
        rows = [row.prompt.row for row in drawn_rows(source, 4, domain)]
        assert sorted(rows) == [row for row in range(12) if row % 3 and row % 2 == odd]


def test_a_dataset_of_which_nothing_is_left_is_refused(open_rows: Callable[..., TablePrompts]) -> None:
    with pytest.raises(SpecProblem, match="all 2 rows have more than 32 tokens") as problem:
        open_rows([{"prompt": LONG}] * 2, **SKIP)
    assert problem.value.reason is Reason.DATASET_EMPTY
    assert "maxTokens" in problem.value.message
    rows = [{"prompt": LONG, "topic": "a"}, {"prompt": "short", "topic": "b"}]
    with pytest.raises(SpecProblem, match="all 1 rows of domain 'a'"):
        open_rows(rows, quotas=quotas("a", "b"), columns={"domain": "topic"}, **SKIP)


SUMS = {
    "reasoningGym": {"task": "chain_sum", "size": 40, "config": {"min_terms": 2, "max_terms": 6}},
    "promptTemplate": "{{ question.split(':')[1] }}",
}


def test_generated_rows_are_skipped_as_they_come_and_counted_once(model: ModelSpec) -> None:
    lengths = {row.prompt.row: len(row.token_ids) for row in drawn_rows(open_source(DatasetSpec(**SUMS), model, 1), 40)}
    spec, fitting = DatasetSpec(**SUMS, **SKIP), sorted(row for row, length in lengths.items() if length <= 20)
    assert 0 < len(fitting) < 40
    source, resumed = (open_source(spec, model, 64 - 20) for _ in range(2))
    assert source.skipped == 0
    assert sorted(row.prompt.row for row in drawn_rows(source, len(fitting))) == fitting
    drawn_rows(source, 1)
    assert source.skipped == 40 - len(fitting)
    resumed.restore(json.loads(json.dumps(source.state())))
    assert drawn_rows(resumed, 2 * len(fitting)) == drawn_rows(source, 2 * len(fitting))
    assert resumed.skipped == source.skipped == 40 - len(fitting)


def test_generated_rows_that_are_all_too_long_end_the_job(model: ModelSpec) -> None:
    spec = DatasetSpec.model_validate({"reasoningGym": {"task": "chain_sum", "size": 64}, **SKIP})
    with pytest.raises(SpecProblem, match="64 rows, one after another, have more than 3 tokens") as problem:
        drawn_rows(open_source(spec, model, 61), 1)
    assert problem.value.reason is Reason.DATASET_EMPTY


def test_held_out_rows_are_skipped_too(model: ModelSpec, tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in MIXED))
    files = {"paths": [str(file)]}
    spec = DatasetSpec.model_validate({"files": files, "evaluation": {"files": files, "maxPrompts": 5}, **SKIP})
    assert [row.prompt.row for row in open_evaluation(spec, model, 32)] == [1, 2, 4, 5, 7]
    more = spec.model_copy(update={"evaluation": spec.evaluation.model_copy(update={"max_prompts": 100})})
    assert len(open_evaluation(more, model, 32)) == 8
    file.write_text(json.dumps({"prompt": LONG}) + "\n")
    with pytest.raises(SpecProblem) as problem:
        open_evaluation(spec, model, 32)
    assert problem.value.field == "spec.dataset.evaluation"


def test_every_row_is_checked_for_its_test_cases_however_long_and_the_log_says_how_far(
    model: ModelSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "_PROGRESS_SECONDS", 0.0)
    cases = json.dumps({"inputs": ["1" * 2**20], "outputs": ["1"]})
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps({"prompt": "a", "input_output": text}) + "\n" for text in (cases, cases[:-1])))
    dataset = DatasetSpec.model_validate({"files": {"paths": [str(path)]}})
    check = row_check([RewardSpec.model_validate({"name": "code", "kind": "Sandbox", "sandbox": {}})])
    with (
        capture_logs() as logs,
        pytest.raises(SpecProblem, match=r"rows.jsonl line 2 .*`input_output`.*correct the row"),
    ):
        open_source(dataset, model, 32, check=check)
    assert [(line["checked"], line["rows"]) for line in logs if line["event"] == "rows are being checked"] == [
        (0, 2),
        (1, 2),
    ]
