"""Engines of a roofline model."""

from __future__ import annotations

from longboat_runtime.rollout.throughput import EngineModel

SEQUENCES = (1, 4, 16, 64, 256)
CONTEXTS = (64, 512, 4096, 16384)


def roofline(
    size: int,
    *,
    weights: float = 0.02,
    overhead: float = 0.006,
    kv: float = 4e-8,
    work: float = 1e-4,
    communication: float = 0.0,
    memory: int = 40_000,
    weight_tokens: int = 26_000,
) -> EngineModel:
    """An engine of `size` devices: a step reads the weights and each sequence's keys and values, computes, and communicates.

    Memory is in tokens of KV cache, of which the weights take `weight_tokens`. Ranks take `communication` seconds for each sequence.
    """
    tokens = size * memory - weight_tokens
    seconds = tuple(
        tuple(
            (overhead * 1.5 + n * communication if size > 1 else overhead) + (weights + n * c * kv + n * work) / size
            for c in CONTEXTS
        )
        for n in SEQUENCES
    )
    return EngineModel(tokens, 2e-5, SEQUENCES, CONTEXTS, seconds)
