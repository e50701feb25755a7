"""What an engine is told at its start, and how it may fail."""

from __future__ import annotations

from dataclasses import dataclass

from longboat_crds.job import RLJobSpec
from longboat_crds.model import DType
from longboat_runtime.rollout.quantity import in_bytes

TORCH_NAMES = {DType.FLOAT32: "float32", DType.BFLOAT16: "bfloat16", DType.FLOAT16: "float16"}

# The weight version of an engine that has got no publication yet.
NO_VERSION = -1


class EngineDead(Exception):
    """The engine's vLLM has failed; it never comes back, and what ran in it is lost."""


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
