"""Tiny configs of architectures that people train, each with the peculiarities of its family."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import PretrainedConfig

VOCABULARY = 264
# Shorter than a prompt and its response, so that it matters.
WINDOW = 8

_SHAPE: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
    "bos_token_id": None,
    "eos_token_id": 1,
    "dtype": "float32",
}
# The smallest that vLLM's attention on CPUs supports.
_HEAD = {"head_dim": 32}
# Large enough that attention scores come near the cap; the cap on logits keeps responses random nevertheless.
_LARGE = {"initializer_range": 0.15}

# By model type: the settings of its config in addition to `_SHAPE`.
_PECULIAR: dict[str, dict[str, Any]] = {
    "qwen2": {"tie_word_embeddings": True},
    "qwen2_moe": {
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
        "shared_expert_intermediate_size": 32,
    },
    "qwen3": _HEAD,
    "llama": {},
    "mistral": _HEAD | {"sliding_window": WINDOW},
    "mixtral": _HEAD | {"num_local_experts": 4},
    "gemma2": _HEAD
    | _LARGE
    | {
        "query_pre_attn_scalar": 32,
        "sliding_window": WINDOW,
        "attn_logit_softcapping": 5.0,
        "final_logit_softcapping": 2.0,
    },
    "gemma3_text": _HEAD | {"query_pre_attn_scalar": 32, "sliding_window": WINDOW, "num_hidden_layers": 6},
    "gpt2": {},
    "gpt_neox": {},
    "phi3": {},
    "olmo2": {},
    "stablelm": {},
    "granite": {"attention_multiplier": 0.25, "logits_scaling": 2.0, "residual_multiplier": 0.5},
}
# By model type: the settings of `_SHAPE` that its config doesn't know.
_UNKNOWN = {"gpt2": ("intermediate_size", "num_key_value_heads"), "gpt_neox": ("num_key_value_heads",)}
ARCHITECTURES = tuple(_PECULIAR)


def tiny_config(architecture: str) -> PretrainedConfig:
    """Makes a config of the architecture with 128 positions and at least two layers."""
    from transformers import AutoConfig

    values = _SHAPE | _PECULIAR[architecture]
    for name in _UNKNOWN.get(architecture, ()):
        del values[name]
    return AutoConfig.for_model(architecture, **values)
