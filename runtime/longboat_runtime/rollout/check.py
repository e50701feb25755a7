"""Settings of an engine against the model's config.json, before anything is started. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from longboat_crds.reasons import Reason
from longboat_runtime.problems import SpecProblem
from longboat_runtime.rollout.engine import EngineConfig

BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


def longest_sequence(config: EngineConfig, model: Mapping[str, Any]) -> int:
    """Tokens of the longest prompt plus response: `spec.model.maxLength`, by default the model's own limit.

    `model` is config.json by standard names (`model_config.language_model`). Raises SpecProblem if the model can't go so far, or if
    neither says how far.
    """
    limit = int(model.get("max_position_embeddings") or config.max_length or 0)
    if not limit:
        raise SpecProblem(
            Reason.MODEL_INVALID,
            "model.maxLength",
            f"config.json in {config.model} names no longest sequence (max_position_embeddings, or what its architecture calls it); "
            "set it",
        )
    if config.max_length is not None and config.max_length > limit:
        raise SpecProblem(
            Reason.MAX_LENGTH_EXCEEDED,
            "model.maxLength",
            f"{config.max_length} tokens, but the model in {config.model} goes to {limit}; lower it or take another model",
        )
    return config.max_length or limit


def check_parallelism(config: EngineConfig, model: Mapping[str, Any]) -> None:
    """Attention heads must divide evenly over the workers of an engine."""
    heads = int(model.get("num_attention_heads", 1))
    if heads % config.tensor_parallel:
        raise SpecProblem(
            Reason.PARALLELISM_INVALID,
            "rollout.tensorParallel",
            f"{heads} attention heads can't be split into {config.tensor_parallel} equal parts; take a divisor of {heads}",
        )


def check_cache(config: EngineConfig, model: Mapping[str, Any], max_length: int) -> None:
    """The KV cache must hold the longest sequence: keys and values of all layers for each of its tokens."""
    if config.kv_cache_bytes is None:
        return
    heads = int(model.get("num_attention_heads", 1))
    kv_heads = max(1, int(model.get("num_key_value_heads", heads)) // config.tensor_parallel)
    head_size = int(model.get("head_dim") or int(model["hidden_size"]) // heads)
    token_bytes = 2 * int(model["num_hidden_layers"]) * kv_heads * head_size * BYTES[config.dtype]
    if config.kv_cache_bytes < token_bytes * max_length:
        raise SpecProblem(
            Reason.KV_CACHE_TOO_SMALL,
            "rollout.kvCache",
            f"{config.kv_cache_bytes} bytes hold {config.kv_cache_bytes // token_bytes} tokens, one sequence may have "
            f"{max_length}; give at least {token_bytes * max_length} bytes or lower model.maxLength",
        )
