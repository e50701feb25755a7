"""What training takes, and what devices can do."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, LlamaConfig, PretrainedConfig, Qwen3MoeConfig

from longboat_crds.model import DType
from longboat_runtime.model_config import language_model
from longboat_runtime.trainer.flops import ModelFlops, peak_flops
from longboat_runtime.trainer.sharding import device_peak, model_flops

SIZES = {"hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2}


def flops_of(config: PretrainedConfig) -> tuple[ModelFlops, int, int]:
    """With the number of the model's weights and of those of its input embedding."""
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    total = sum(parameter.numel() for parameter in model.parameters())
    return model_flops(model, language_model(config.to_dict()), None), total, 64 * 16


def test_the_input_embedding_is_looked_up_and_not_multiplied_unless_it_is_the_output_too() -> None:
    rest = {"vocab_size": 64, "intermediate_size": 32, **SIZES}
    own, total, embedding = flops_of(LlamaConfig(tie_word_embeddings=False, **rest))
    assert (own.weights, own.attention) == (total - embedding, 3 * 16)
    tied, total, _ = flops_of(LlamaConfig(tie_word_embeddings=True, **rest))
    assert tied.weights == total


def test_a_token_uses_the_experts_that_it_is_routed_to() -> None:
    experts = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 8, "decoder_sparse_step": 1}
    config = Qwen3MoeConfig(
        vocab_size=64, intermediate_size=32, head_dim=4, tie_word_embeddings=False, **experts, **SIZES
    )
    found, total, embedding = flops_of(config)
    of_experts = 3 * 8 * (3 * 16 * 8)
    assert found.weights == total - embedding - of_experts * 6 // 8


@given(st.lists(st.integers(1, 5000), min_size=1, max_size=20))
def test_training_takes_6_for_each_weight_and_token_and_for_each_pair_that_attends(lengths: list[int]) -> None:
    attended = sum(length * length for length in lengths)
    assert ModelFlops(1000, 0).training(lengths) == pytest.approx(6 * 1000 * sum(lengths))
    assert ModelFlops(1000, 32).training(lengths) == pytest.approx(6 * 1000 * sum(lengths) + 6 * 32 * attended)


def test_the_share_of_the_peak() -> None:
    model = ModelFlops(7_000_000_000, 0, 989e12)
    assert model.utilisation([1000] * 100, 10.0, 2) == pytest.approx(6 * 7e9 * 1e5 / (10 * 2 * 989e12))
    assert ModelFlops(7_000_000_000, 0).utilisation([1000], 1.0, 1) is None


@pytest.mark.parametrize(
    ("name", "peak"),
    [
        ("NVIDIA H100 80GB HBM3", 989e12),
        ("NVIDIA H100 PCIe", 756e12),
        ("NVIDIA H20", 148e12),
        ("NVIDIA H200", 989e12),
        ("NVIDIA GH200 480GB", 989e12),
        ("NVIDIA B200", 2250e12),
        ("NVIDIA A100-SXM4-80GB", 312e12),
        ("NVIDIA A10G", 70e12),
        ("NVIDIA A10", 125e12),
        ("NVIDIA L40S", 362e12),
        ("Tesla V100-SXM2-32GB", 125e12),
        ("Tesla V100-PCIE-16GB", 112e12),
        ("NVIDIA RTX 6000 Ada Generation", 364e12),
        ("NVIDIA GeForce RTX 4090", 165e12),
        ("AMD Instinct MI300X", 1307e12),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", None),
        ("Something new", None),
    ],
)
def test_known_devices(name: str, peak: float | None) -> None:
    assert peak_flops(name) == peak


def test_nothing_is_said_of_cpus_and_of_float32() -> None:
    assert device_peak(torch.device("cpu"), DType.BFLOAT16) is None
    assert device_peak(torch.device("cuda"), DType.FLOAT32) is None
