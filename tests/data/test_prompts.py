"""The columns of a row, and how long a sequence may be, by config.json and the spec."""

import json
from pathlib import Path

import pytest

from longboat_crds.model import ModelSpec
from longboat_crds.reasons import Reason
from longboat_runtime.data.prompts import column, context_length
from longboat_runtime.model_config import language_model
from longboat_runtime.problems import SpecProblem


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


def directory(path: Path, **config: object) -> str:
    (path / "config.json").write_text(json.dumps(config))
    return str(path)


@pytest.mark.parametrize(
    "config",
    [
        {"model_type": "qwen3", "max_position_embeddings": 512},
        {"model_type": "gpt2", "n_positions": 512},
        {"model_type": "gemma3", "text_config": {"model_type": "gemma3_text", "max_position_embeddings": 512}},
        {"model_type": "unheard_of", "max_position_embeddings": 512},
    ],
)
def test_the_longest_sequence_is_the_models_by_whatever_name(tmp_path: Path, config: dict) -> None:
    assert context_length(ModelSpec(path=directory(tmp_path, **config))) == 512
    with pytest.raises(SpecProblem, match="more than the 512 positions") as problem:
        context_length(ModelSpec(path=str(tmp_path), max_length=513))
    assert problem.value.reason is Reason.MAX_LENGTH_EXCEEDED


def test_a_model_that_names_none_asks_for_one(tmp_path: Path) -> None:
    path = directory(tmp_path, model_type="mamba")
    assert context_length(ModelSpec(path=path, max_length=100)) == 100
    with pytest.raises(SpecProblem, match="names no longest sequence") as problem:
        context_length(ModelSpec(path=path))
    assert problem.value.field == "spec.model.maxLength"


def test_heads_and_layers_have_their_standard_names() -> None:
    model = language_model({"model_type": "gpt2", "n_head": 12, "n_layer": 6, "n_embd": 768})
    assert (model["num_attention_heads"], model["num_hidden_layers"], model["hidden_size"]) == (12, 6, 768)
