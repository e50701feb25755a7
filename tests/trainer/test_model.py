import json
from pathlib import Path

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    BioGptConfig,
    DbrxConfig,
    OpenAIGPTConfig,
    OPTConfig,
    PretrainedConfig,
    Starcoder2Config,
    ViTConfig,
)

from longboat_crds.problems import SpecProblem
from longboat_crds.reasons import Reason
from longboat_runtime.trainer.model import read_config
from tests.support.tiny_model import build_tiny_model

SIZES = {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
DROPPING = [
    Starcoder2Config(**SIZES, num_key_value_heads=2, intermediate_size=64, residual_dropout=0.5, embedding_dropout=0.5),
    BioGptConfig(
        **SIZES, intermediate_size=64, hidden_dropout_prob=0.5, attention_probs_dropout_prob=0.5, activation_dropout=0.5
    ),
    OPTConfig(**SIZES, ffn_dim=64, dropout=0.0, layerdrop=0.5),
    DbrxConfig(
        vocab_size=64,
        d_model=32,
        n_layers=2,
        n_heads=4,
        attn_config={"kv_n_heads": 2, "attn_pdrop": 0.5, "clip_qkv": 8.0, "rope_theta": 10000.0},
        ffn_config={"hidden_size": 32, "ffn_hidden_size": 64},
    ),
]


def problem_with(path: Path) -> SpecProblem:
    with pytest.raises(SpecProblem) as problem:
        read_config(path)
    assert problem.value.field == "spec.model.path"
    assert problem.value.fatal
    return problem.value


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return build_tiny_model(tmp_path / "model", hidden=64)


def test_no_directory(tmp_path: Path) -> None:
    problem = problem_with(tmp_path / "nothing")
    assert problem.reason == Reason.MODEL_NOT_FOUND
    assert "mounts it" in problem.message


def test_no_config(tmp_path: Path) -> None:
    assert problem_with(tmp_path).reason == Reason.MODEL_NOT_FOUND


def test_a_config_that_is_no_json(directory: Path) -> None:
    (directory / "config.json").write_text("{")
    assert problem_with(directory).reason == Reason.MODEL_INVALID


def test_an_unknown_architecture(directory: Path) -> None:
    (directory / "config.json").write_text(json.dumps({"model_type": "unheard_of"}))
    assert problem_with(directory).reason == Reason.MODEL_INVALID


def test_no_language_model(tmp_path: Path) -> None:
    ViTConfig().save_pretrained(tmp_path)
    problem = problem_with(tmp_path)
    assert problem.reason == Reason.MODEL_INVALID
    assert "no causal language model" in problem.message


def test_a_vision_language_model(directory: Path) -> None:
    config = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps(config | {"vision_config": {"depth": 2}}))
    assert "vision-language" in problem_with(directory).message


def test_a_language_model_that_engines_cannot_run(tmp_path: Path) -> None:
    """Transformers has it, but neither has vLLM, nor can vLLM run transformers' code of it."""
    OpenAIGPTConfig(architectures=["OpenAIGPTLMHeadModel"]).save_pretrained(tmp_path)
    problem = problem_with(tmp_path)
    assert problem.reason == Reason.MODEL_INVALID
    assert "an architecture that vLLM doesn't have (OpenAIGPTLMHeadModel)" in problem.message


def test_a_config_with_a_value_of_a_wrong_type(directory: Path) -> None:
    config = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps(config | {"hidden_size": "large"}))
    assert "hidden_size" in problem_with(directory).message


@pytest.mark.parametrize("config", DROPPING, ids=lambda config: config.model_type)
def test_nothing_is_dropped_while_a_model_trains(tmp_path: Path, config: PretrainedConfig) -> None:
    config.save_pretrained(tmp_path)
    model = AutoModelForCausalLM.from_config(read_config(tmp_path))
    tokens = torch.arange(3, 19)[None]
    with torch.no_grad():
        training = [model.train()(tokens, use_cache=False).logits for _ in range(4)]
        evaluated = model.eval()(tokens, use_cache=False).logits
    assert all(torch.equal(logits, evaluated) for logits in training)
