"""An engine's configuration: what the spec asks for, whether the model allows it, and how an engine may fail. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from longboat_crds.job import RLJobSpec
from longboat_crds.model import DType
from longboat_crds.problems import SpecProblem
from longboat_crds.quantities import in_bytes
from longboat_crds.reasons import Reason

TORCH_NAMES = {DType.FLOAT32: "float32", DType.BFLOAT16: "bfloat16", DType.FLOAT16: "float16"}
BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}

# One part in RESERVE of rollout.deviceMemory is kept for activations, captured graphs and libraries.
RESERVE = 10

# The weight version of an engine that has received no publication yet.
NO_VERSION = -1


class EngineDead(Exception):
    """The engine's vLLM has failed or was shut down; it never recovers, and what ran in it is lost."""


class TurnsRefused(Exception):
    """The engine takes no turns now, since it is being drained."""


@dataclass(frozen=True, slots=True)
class TurnParsers:
    """Names the parsers of vLLM that read tool calls and reasoning from turns; without one there are none of them."""

    tool: str | None = None
    reasoning: str | None = None


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """One vLLM instance. `name` is unique among the job's engines; `dtype` is torch's name.

    It has `devices` of its pod, one for each rank. `max_length` None means the model's own limit. Bytes are those of one rank:
    `kv_cache_bytes` of its KV cache, or else `device_memory` of all that it may use. None for both means vLLM's default on accelerators,
    that of `rollout.arguments` on CPUs. Only an engine with `parsers`, of a job with environments, serves turns. With `reads_weights` it has the
    model's own weights from the start, and needs no publication.
    """

    name: str
    model: str
    dtype: str
    max_sequences: int = 256
    devices: tuple[int, ...] = (0,)
    max_length: int | None = None
    kv_cache_bytes: int | None = None
    enforce_eager: bool = False
    device_memory: int | None = None
    parsers: TurnParsers | None = None
    reads_weights: bool = False

    @property
    def tensor_parallel(self) -> int:
        return len(self.devices)


def engine_config(spec: RLJobSpec, name: str, devices: tuple[int, ...]) -> EngineConfig:
    """Makes the config of an engine of the job on these devices of its pod."""
    return EngineConfig(
        name=name,
        model=spec.model.path,
        dtype=TORCH_NAMES[spec.model.dtype],
        max_sequences=spec.rollout.max_sequences,
        devices=devices,
        max_length=spec.model.max_length,
        kv_cache_bytes=None if spec.rollout.kv_cache is None else in_bytes(spec.rollout.kv_cache),
        enforce_eager=spec.rollout.enforce_eager,
        device_memory=None if spec.rollout.device_memory is None else in_bytes(spec.rollout.device_memory),
        parsers=turn_parsers(spec),
    )


def turn_parsers(spec: RLJobSpec) -> TurnParsers | None:
    """Returns the parsers of the job's turns; None without environments."""
    if spec.environments is None:
        return None
    return TurnParsers(spec.rollout.tool_parser, spec.rollout.reasoning_parser)


def parallelism_problem(tensor_parallel: int, model: Mapping[str, Any]) -> str | None:
    """Says why vLLM can't split the model over so many ranks, and the cure; None if no rule forbids it.

    `model` is its config.json by standard names.

    The rules are those of vLLM's layers: each rank gets as many attention heads as any other and an equal part of the feed-forward
    layers. Key heads are split evenly or, if there are fewer than ranks, each is copied to equally many of them.
    """
    heads = int(model.get("num_attention_heads", 1))
    kv_heads = int(model.get("num_key_value_heads") or heads)
    if heads % tensor_parallel:
        return f"{heads} attention heads can't be split into {tensor_parallel} equal parts; take a divisor of {heads}"
    if max(kv_heads, tensor_parallel) % min(kv_heads, tensor_parallel):
        return (
            f"{kv_heads} key heads can neither be split into {tensor_parallel} equal parts nor be copied equally often to "
            f"{tensor_parallel} ranks; take a divisor or a multiple of {kv_heads}"
        )
    for name in ("intermediate_size", "moe_intermediate_size"):
        if (size := int(model.get(name) or 0)) % tensor_parallel:
            return f"{name} {size} can't be split into {tensor_parallel} equal parts; take a divisor of {size}"
    return None


def check_parallelism(config: EngineConfig, model: Mapping[str, Any]) -> None:
    """Raises SpecProblem if vLLM can't split the model over the engine's devices."""
    if problem := parallelism_problem(config.tensor_parallel, model):
        raise SpecProblem(Reason.PARALLELISM_INVALID, "rollout.tensorParallel", problem)


def kv_token_bytes(model: Mapping[str, Any], dtype: str, tensor_parallel: int) -> int:
    """Returns the bytes of one token's keys and values, of all layers, on one rank.

    A rank has one key head at least: more ranks than key heads gain nothing.
    """
    heads = int(model.get("num_attention_heads", 1))
    kv_heads = max(1, int(model.get("num_key_value_heads") or heads) // tensor_parallel)
    head_size = int(model.get("head_dim") or int(model["hidden_size"]) // heads)
    return 2 * int(model["num_hidden_layers"]) * kv_heads * head_size * BYTES[dtype]


def rank_weight_bytes(
    shapes: Mapping[str, Sequence[int]], model: Mapping[str, Any], dtype: str, tensor_parallel: int
) -> int:
    """Returns the bytes of the weights on each rank; `shapes` are those of the model's tensors by their names in its files.

    Vectors are on all ranks, matrices are split over them, those that make keys and values at most into single heads. An output layer
    that is tied to the embeddings doesn't count.
    """
    kv_heads = int(model.get("num_key_value_heads") or model.get("num_attention_heads", 1))
    elements = 0
    for name, shape in shapes.items():
        if name.startswith("lm_head.") and model.get("tie_word_embeddings"):
            continue
        of_kv = any(part in name for part in (".k_proj.", ".v_proj."))
        parts = 1 if len(shape) < 2 else min(tensor_parallel, kv_heads) if of_kv else tensor_parallel
        elements += math.prod(shape) // parts
    return elements * BYTES[dtype]


def with_cache(config: EngineConfig, model: Mapping[str, Any], shapes: Mapping[str, Sequence[int]]) -> EngineConfig:
    """Returns the config with the KV cache that its device memory leaves: what neither a rank's weights nor the reserve take.

    Without `device_memory` it is the same. Raises SpecProblem if nothing is left.
    """
    if config.device_memory is None:
        return config
    weights = rank_weight_bytes(shapes, model, config.dtype, config.tensor_parallel)
    cache_bytes = config.device_memory - config.device_memory // RESERVE - weights
    if cache_bytes <= 0:
        needed = math.ceil(weights * RESERVE / (RESERVE - 1) / 2**20)
        raise SpecProblem(
            Reason.DEVICE_MEMORY_TOO_SMALL,
            "rollout.deviceMemory",
            f"{config.device_memory} bytes can't hold the {weights} bytes of weights of one of {config.tensor_parallel} ranks and a "
            f"reserve of a tenth; give more than {needed}Mi, or raise rollout.tensorParallel",
        )
    return replace(config, kv_cache_bytes=cache_bytes)


def check_cache(config: EngineConfig, model: Mapping[str, Any], max_length: int) -> None:
    """Raises SpecProblem if a KV cache of given size can't hold the longest sequence: keys and values of all layers for each token."""
    if config.kv_cache_bytes is None:
        return
    token_bytes = kv_token_bytes(model, config.dtype, config.tensor_parallel)
    if (short := token_bytes * max_length - config.kv_cache_bytes) <= 0:
        return
    holds = f"{config.kv_cache_bytes} bytes hold {config.kv_cache_bytes // token_bytes} tokens, one sequence may have {max_length}"
    if config.device_memory is not None:
        field, cure = (
            "rollout.deviceMemory",
            f"give at least {config.device_memory + short * RESERVE // (RESERVE - 1) + 1} bytes",
        )
    else:
        field, cure = "rollout.kvCache", f"give at least {token_bytes * max_length} bytes"
    raise SpecProblem(Reason.KV_CACHE_TOO_SMALL, field, f"{holds}; {cure} or lower model.maxLength")


def kv_tokens(
    config: EngineConfig, model: Mapping[str, Any], shapes: Mapping[str, Sequence[int]], sizes: Iterable[int]
) -> dict[int, int]:
    """Returns how many tokens (at least 1) the KV cache of an engine of each size holds, by the memory that the spec gives a rank.

    Empty if the spec gives none. `model` and `shapes` are as for `with_cache`, which says when SpecProblem is raised.
    """
    if config.kv_cache_bytes is None and config.device_memory is None:
        return {}
    tokens = {}
    for size in sizes:
        cache = with_cache(replace(config, devices=tuple(range(size))), model, shapes).kv_cache_bytes or 0
        tokens[size] = max(1, cache // kv_token_bytes(model, config.dtype, size))
    return tokens
