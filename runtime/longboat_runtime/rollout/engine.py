"""An engine's configuration: what the spec asks for, whether the model allows it, and how an engine may fail. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from longboat_crds.job import RLJobSpec
from longboat_crds.model import DType
from longboat_crds.reasons import Reason
from longboat_runtime.problems import SpecProblem

# Bytes of the units of Kubernetes.
UNITS = {
    "Ki": 2**10,
    "Mi": 2**20,
    "Gi": 2**30,
    "Ti": 2**40,
    "Pi": 2**50,
    "k": 10**3,
    "M": 10**6,
    "G": 10**9,
    "T": 10**12,
    "P": 10**15,
}


TORCH_NAMES = {DType.FLOAT32: "float32", DType.BFLOAT16: "bfloat16", DType.FLOAT16: "float16"}
BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}

# The weight version of an engine that has received no publication yet.
NO_VERSION = -1


class EngineDead(Exception):
    """The engine's vLLM has failed; it never recovers, and what ran in it is lost."""


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """One vLLM instance. `name` is unique among the job's engines; `dtype` is torch's name.

    `max_length` None means the model's own limit, `kv_cache_bytes` None the default of `rollout.arguments`.
    """

    name: str
    model: str
    dtype: str
    max_sequences: int = 256
    tensor_parallel: int = 1
    max_length: int | None = None
    kv_cache_bytes: int | None = None
    enforce_eager: bool = False


def engine_config(spec: RLJobSpec, name: str) -> EngineConfig:
    """The engine `spec` asks for."""
    return EngineConfig(
        name=name,
        model=spec.model.path,
        dtype=TORCH_NAMES[spec.model.dtype],
        max_sequences=spec.rollout.max_sequences,
        tensor_parallel=spec.rollout.tensor_parallel,
        max_length=spec.model.max_length,
        kv_cache_bytes=None if spec.rollout.kv_cache is None else in_bytes(spec.rollout.kv_cache),
        enforce_eager=spec.rollout.enforce_eager,
    )


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


def in_bytes(quantity: str) -> int:
    """Whole bytes of a quantity such as `64Mi`, rounded down. The API has checked its form."""
    for suffix, factor in UNITS.items():
        if quantity.endswith(suffix):
            return int(Decimal(quantity.removesuffix(suffix)) * factor)
    if quantity.endswith("m"):
        return int(Decimal(quantity.removesuffix("m")) / 1000)
    return int(Decimal(quantity))
