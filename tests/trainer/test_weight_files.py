"""Ranks load what `from_pretrained` loads, and none reads or holds more than its part."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    MixtralConfig,
    PhimoeConfig,
    PretrainedConfig,
    Qwen3Config,
    Qwen3MoeConfig,
)

from bench.memory.allocations import Allocations
from longboat_crds.problems import SpecProblem
from longboat_runtime.trainer.rank import TrainerRank
from longboat_runtime.trainer.sharding import load_sharded
from tests.support.architectures import ARCHITECTURES, tiny_config
from tests.trainer.test_architectures import EXPERTS, SHAPE
from tests.trainer.trainer_world import full, make_spec, only_rank, run_ranks

RANKS = 3
LAYERS = 12
# Long contexts by scaled frequencies: buffers that are in no file.
SCALED = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
YARN = {"rope_type": "yarn", "factor": 4.0}
CONTEXT = {"original_max_position_embeddings": 64, "rope_theta": 10000.0}
CONFIGS: dict[str, Callable[[], PretrainedConfig]] = {
    "llama3 frequencies": lambda: LlamaConfig(**SHAPE, rope_parameters=SCALED | CONTEXT),
    "yarn frequencies": lambda: LlamaConfig(**SHAPE, rope_parameters=YARN | CONTEXT),
    "fewer experts than ranks": lambda: MixtralConfig(**SHAPE, num_local_experts=2, num_experts_per_tok=1),
    "qwen3_moe": lambda: Qwen3MoeConfig(**SHAPE, **EXPERTS),
    "phimoe": lambda: PhimoeConfig(**SHAPE, num_local_experts=4, num_experts_per_tok=2),
} | {name: partial(tiny_config, name) for name in ARCHITECTURES}
# With buffers, with fewer experts than ranks, in bfloat16.
FEW = ["llama3 frequencies", "fewer experts than ranks", "qwen3_moe", "qwen2"]


def values(model: nn.Module) -> dict[str, torch.Tensor]:
    """All weights and buffers, whole. A collective where they are sharded."""
    named = [*model.named_parameters(), *model.named_buffers()]
    return {name: full(value) for name, value in named}


def compare_with_transformers(rank: TrainerRank, directory: Path) -> None:
    """Every model below `directory`; what differs on any rank fails the test."""
    for model in sorted(directory.iterdir()):
        loaded = load_sharded(make_spec(model).model, rank.mesh)
        expected = values(AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32))
        found = values(loaded)
        assert found.keys() == expected.keys(), model.name
        for name, value in expected.items():
            assert found[name].dtype == value.dtype, f"{model.name}: {name}"
            assert torch.equal(found[name], value), f"{model.name}: {name}"


def record_loading(rank: TrainerRank, directory: Path) -> None:
    with Allocations() as allocations:
        loaded = load_sharded(rank.spec.model, rank.mesh)
    sizes = {name: weight.numel() * 4 for name, weight in loaded.named_parameters()}
    torch.save(
        {
            "peak": allocations.peak,
            "shards": sum(weight.to_local().nbytes for weight in loaded.parameters()),
            "layer": sum(size for name, size in sizes.items() if ".layers.0." in name),
            "model": sum(sizes.values()),
        },
        directory / f"memory-{rank.rank}",
    )


def see_the_problem(rank: TrainerRank, directory: Path) -> None:
    """The weights are gone on one rank's node only."""
    model = directory / ("broken" if rank.rank == 1 else "model")
    with pytest.raises(SpecProblem, match="are missing"):
        load_sharded(make_spec(model).model, rank.mesh)
    (directory / f"rank-{rank.rank}-saw-it").touch()


def save(config: PretrainedConfig, directory: Path, dtype: torch.dtype = torch.float32) -> None:
    """Weights that differ everywhere, norms and biases too."""
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    torch.manual_seed(0)
    with torch.no_grad():
        for weight in model.parameters():
            weight.normal_()
    model.to(dtype).save_pretrained(directory)


@pytest.mark.parametrize("names", [FEW, pytest.param(list(CONFIGS), marks=pytest.mark.extended)], ids=["few", "all"])
def test_ranks_together_hold_the_weights_and_buffers_of_from_pretrained(tmp_path: Path, names: list[str]) -> None:
    for name in names:
        save(CONFIGS[name](), tmp_path / "models" / name, torch.bfloat16 if "moe" in name else torch.float32)
    run_ranks(RANKS, compare_with_transformers, make_spec(tmp_path / "models" / "qwen2"), tmp_path / "models")


def test_files_with_an_index_load_as_one(tmp_path: Path) -> None:
    AutoModelForCausalLM.from_config(CONFIGS["qwen3_moe"]()).save_pretrained(
        tmp_path / "models" / "model", max_shard_size="20KB"
    )
    assert len(list((tmp_path / "models" / "model").glob("*.safetensors"))) > 2
    run_ranks(2, compare_with_transformers, make_spec(tmp_path / "models" / "model"), tmp_path / "models")


@pytest.mark.parametrize("kind", [pytest.param("layers", marks=pytest.mark.extended), "experts"])
def test_loading_takes_a_layer_besides_the_shards_not_the_model(tmp_path: Path, kind: str) -> None:
    shape = SHAPE | {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": LAYERS}
    experts = EXPERTS | {"num_experts": 8, "moe_intermediate_size": 64}
    save(
        Qwen3Config(**shape) if kind == "layers" else Qwen3MoeConfig(**shape, **experts),
        tmp_path / "model",
        torch.bfloat16,
    )
    run_ranks(2, record_loading, make_spec(tmp_path / "model"), tmp_path)
    for number in range(2):
        rank = torch.load(tmp_path / f"memory-{number}")
        assert rank["shards"] < 0.6 * rank["model"]
        assert rank["peak"] <= rank["shards"] + rank["layer"]


def test_a_rank_without_the_weights_fails_all_of_them(tmp_path: Path) -> None:
    for name in ("model", "broken"):
        save(tiny_config("qwen3"), tmp_path / name)
    weights = load_file(tmp_path / "broken" / "model.safetensors")
    del weights["model.norm.weight"]
    save_file(weights, tmp_path / "broken" / "model.safetensors")
    run_ranks(2, see_the_problem, make_spec(tmp_path / "model"), tmp_path)
    assert len(list(tmp_path.glob("rank-*"))) == 2


def problem_with(path: Path) -> str:
    with pytest.raises(SpecProblem) as problem, only_rank(make_spec(path)):
        pass
    assert problem.value.field == "spec.model.path"
    assert problem.value.fatal
    return problem.value.message


@pytest.fixture
def model(tmp_path: Path) -> Path:
    save(tiny_config("qwen2"), tmp_path)
    return tmp_path


def test_no_weights(model: Path) -> None:
    (model / "model.safetensors").unlink()
    assert "neither model.safetensors nor" in problem_with(model)


def test_weights_in_torchs_own_format_are_to_be_converted(model: Path) -> None:
    torch.save(load_file(model / "model.safetensors"), model / "pytorch_model.bin")
    (model / "model.safetensors").unlink()
    assert "convert pytorch_model.bin" in problem_with(model)


def test_a_file_cut_short_while_it_was_copied(model: Path) -> None:
    file = model / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    assert "copy the model again" in problem_with(model)


def test_a_file_of_the_index_that_is_not_there(model: Path) -> None:
    (model / "model.safetensors").rename(model / "model-1.safetensors")
    index = {"weight_map": {"model.norm.weight": "model-1.safetensors", "lm_head.weight": "model-2.safetensors"}}
    (model / "model.safetensors.index.json").write_text(json.dumps(index))
    assert "model-2.safetensors" in problem_with(model)


def test_an_index_that_can_not_be_read(model: Path) -> None:
    (model / "model.safetensors").unlink()
    (model / "model.safetensors.index.json").symlink_to("/proc/self/mem")
    assert "model.safetensors.index.json of" in (message := problem_with(model))
    assert "Input/output error" in message


def test_missing_weights_are_not_made_up(model: Path) -> None:
    weights = load_file(model / "model.safetensors")
    del weights["model.layers.0.mlp.up_proj.weight"]
    save_file(weights, model / "model.safetensors")
    assert "model.layers.0.mlp.up_proj.weight" in problem_with(model)


def test_weights_of_another_shape(model: Path) -> None:
    weights = load_file(model / "model.safetensors")
    weights["model.norm.weight"] = torch.ones(3)
    save_file(weights, model / "model.safetensors")
    message = problem_with(model)
    assert "model.norm.weight" in message
    assert "(3,)" in message


def test_quantized_weights_are_refused(model: Path) -> None:
    weights = load_file(model / "model.safetensors")
    name = "model.layers.0.mlp.up_proj.weight"
    weights[name] = weights[name].to(torch.float8_e4m3fn)
    save_file(weights, model / "model.safetensors")
    assert "bfloat16" in problem_with(model)


def test_tied_weights_may_be_stored_by_either_name(model: Path) -> None:
    weights = load_file(model / "model.safetensors")
    embedding = weights.pop("model.embed_tokens.weight")
    save_file(weights | {"lm_head.weight": embedding}, model / "model.safetensors")
    with only_rank(make_spec(model)) as rank:
        assert torch.equal(full(rank.model.model.embed_tokens.weight), embedding)
