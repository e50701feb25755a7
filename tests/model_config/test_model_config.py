"""What config.json says under standard names, and how long a sequence may be by it and the spec."""

import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import Gemma3Config, GPT2Config, MambaConfig, PreTrainedConfig

from longboat_crds.model import ModelSpec
from longboat_crds.problems import SpecProblem
from longboat_crds.reasons import Reason
from longboat_runtime.data.prompts import context_length
from longboat_runtime.model_config import (
    Architectures,
    architectures,
    checked_model,
    language_model,
    longest_sequence,
    model_problem,
    tensor_shapes,
)
from longboat_runtime.rollout.engine import EngineConfig
from longboat_runtime.rollout.environment import NodeDevices
from longboat_runtime.rollout.factory import start_engine

CONFIGS: tuple[dict[str, Any], ...] = (
    {"model_type": "qwen3", "max_position_embeddings": 512},
    {"model_type": "gpt2", "n_positions": 512},
    {"model_type": "gemma3", "text_config": {"model_type": "gemma3_text", "max_position_embeddings": 512}},
    {"model_type": "unheard_of", "max_position_embeddings": 512},
)


def of_the_driver(directory: Path, max_length: int | None) -> int:
    return context_length(ModelSpec(path=str(directory), max_length=max_length))


def of_an_engine(directory: Path, max_length: int | None) -> None:
    start_engine(EngineConfig("e", str(directory), "float32", max_length=max_length), NodeDevices(1))


@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize("read", [of_the_driver, of_an_engine])
def test_no_job_goes_beyond_what_its_model_takes(
    read: Callable[[Path, int | None], object], config: dict[str, Any], tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(SpecProblem, match=r"513 tokens, but the model in .+ allows at most 512") as caught:
        read(tmp_path, 513)
    assert (caught.value.reason, caught.value.field) == (Reason.MAX_LENGTH_EXCEEDED, "spec.model.maxLength")


@pytest.mark.parametrize("config", CONFIGS)
def test_the_longest_sequence_is_the_models_by_whatever_name(config: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert of_the_driver(tmp_path, None) == longest_sequence(language_model(config), None, "/model") == 512


@pytest.mark.parametrize(
    ("config", "limit"),
    [
        (GPT2Config(n_positions=512), 512),
        (Gemma3Config(text_config={"max_position_embeddings": 512}), 512),
        (MambaConfig(), None),
    ],
)
def test_a_loaded_config_says_the_same_as_its_file(config: PreTrainedConfig, limit: int | None) -> None:
    """Of the model that the trainer has loaded, and of its config.json."""
    loaded = language_model(config.get_text_config().to_dict())
    assert loaded.get("max_position_embeddings") == limit
    assert language_model(json.loads(config.to_json_string())).get("max_position_embeddings") == limit


@given(st.integers(8, 100) | st.none(), st.integers(8, 100) | st.none())
def test_the_spec_may_ask_for_less_and_has_to_where_the_model_says_nothing(asked: int | None, own: int | None) -> None:
    model: Mapping[str, Any] = {} if own is None else {"max_position_embeddings": own}
    if asked is None and own is None:
        with pytest.raises(SpecProblem, match="names no longest sequence") as caught:
            longest_sequence(model, asked, "/model")
        assert (caught.value.reason, caught.value.field) == (Reason.MODEL_INVALID, "spec.model.maxLength")
    elif asked is not None and own is not None and asked > own:
        with pytest.raises(SpecProblem, match=f"{asked} tokens, but the model in /model allows at most {own}"):
            longest_sequence(model, asked, "/model")
    else:
        assert longest_sequence(model, asked, "/model") == min(length for length in (asked, own) if length is not None)


ENGINES = Architectures(
    text=frozenset({"Qwen3ForCausalLM", "GemmaForCausalLM"}),
    multimodal=frozenset({"GemmaForConditionalGeneration", "FuyuForCausalLM"}),
    others=frozenset({"LlamaModel"}),
    transformers=frozenset({"Qwen3ForCausalLM", "OlmoForCausalLM", "FuyuForCausalLM"}),
)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({"architectures": ["GemmaForConditionalGeneration"]}, "vision-language"),
        ({"architectures": ["FuyuForCausalLM"]}, "vision-language"),
        ({"model_type": "qwen3", "vision_config": {"depth": 2}}, "qwen3: config.json has vision_config"),
        ({"architectures": ["Qwen3ForCausalLM"], "audio_config": {"depth": 2}}, "config.json has audio_config"),
        ({"architectures": ["LlamaModel"]}, "no language model that generates text"),
        ({"architectures": ["Qwen4ForCausalLM"]}, "(Qwen4ForCausalLM); use a model of one that it has. Did you mean 'Qwen3F"),
    ],
)  # fmt: skip
def test_what_engines_or_trainers_cannot_take_is_named(content: dict[str, Any], words: str) -> None:
    assert words in (model_problem(content, ENGINES) or "")


@pytest.mark.parametrize(
    "content",
    [
        {"architectures": ["Qwen3ForCausalLM"]},
        {"architectures": ["Unheard", "GemmaForCausalLM"], "vision_config": None},
        {"architectures": ["OlmoForCausalLM"]},  # vLLM may run transformers' code
        {"model_type": "qwen3"},
        {"architectures": None},
    ],
)
def test_what_they_may_take_is_not_refused(content: dict[str, Any]) -> None:
    assert model_problem(content, ENGINES) is None


def test_without_a_list_only_other_inputs_are_refused() -> None:
    assert model_problem({"architectures": ["Unheard"]}, None) is None
    assert model_problem({"architectures": ["Unheard"], "vision_config": {"depth": 2}}, None) is not None


def test_the_list_is_that_of_the_installed_vllm() -> None:
    engines = architectures()
    assert engines is not None
    assert {"Qwen3ForCausalLM", "LlamaForCausalLM", "GPT2LMHeadModel", "Olmo2ForCausalLM"} <= engines.text
    assert {"Qwen2_5_VLForConditionalGeneration", "Gemma3ForConditionalGeneration"} <= engines.multimodal
    assert not engines.text & (engines.multimodal | engines.others)


@pytest.mark.parametrize("base", ['{"base_model_name_or_path": "/models/base"}', "[]", "{"])
def test_an_adapter_is_no_model(base: str, tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text(base)
    for read in (checked_model, lambda path: of_the_driver(path, None), lambda path: of_an_engine(path, None)):
        with pytest.raises(SpecProblem, match=r"holds an adapter .* merge it into its base model") as caught:
            read(tmp_path)
        assert (caught.value.reason, caught.value.field) == (Reason.MODEL_INVALID, "spec.model.path")


@pytest.mark.parametrize(
    ("content", "reason"),
    [(None, Reason.MODEL_NOT_FOUND), ("{", Reason.MODEL_INVALID), ("[]", Reason.MODEL_INVALID)],
)
def test_a_directory_without_a_config_is_no_model(content: str | None, reason: Reason, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "config.json").write_text(content)
    with pytest.raises(SpecProblem, match=r"config\.json") as caught:
        checked_model(tmp_path)
    assert (caught.value.reason, caught.value.field) == (reason, "spec.model.path")


def test_heads_and_layers_have_their_standard_names() -> None:
    model = language_model({"model_type": "gpt2", "n_head": 12, "n_layer": 6, "n_embd": 768})
    assert (model["num_attention_heads"], model["num_hidden_layers"], model["hidden_size"]) == (12, 6, 768)


@pytest.mark.parametrize("index", ["[]", "{}", '{"weight_map": []}', '{"weight_map": {"a": 1}}', "no JSON"])
def test_of_files_that_can_not_be_read_no_shape_is_known(tmp_path: Path, index: str) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(index)
    assert tensor_shapes(tmp_path) == {}


def test_a_process_that_computes_nothing_has_tokenizers_and_configurations_without_torch() -> None:
    program = """
import sys
from longboat_runtime.model_config import architectures, import_transformers_without_torch, language_model
import_transformers_without_torch()
from transformers import AutoTokenizer
assert AutoTokenizer.from_pretrained
assert architectures() is not None
print(language_model({"model_type": "gpt2", "n_positions": 512})["max_position_embeddings"], "torch" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("512 False\n", "")
