"""The two models of the benchmark: the one whose sizes count, and the tiny one that engines load but don't compute."""

from __future__ import annotations

import json
from pathlib import Path

from bench.rounds.drawn import without_end

# Qwen3-8B, as its config.json has it: what the planner sees.
PUBLISHED = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "hidden_size": 4096,
    "intermediate_size": 12288,
    "num_hidden_layers": 36,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 151936,
    "max_position_embeddings": 40960,
    "tie_word_embeddings": False,
}


def write_published(folder: Path) -> Path:
    """Makes `folder`, with a config.json alone, as no engine loads it; returns it."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(PUBLISHED))
    return folder


def write_tiny(folder: Path, max_length: int) -> Path:
    """Writes a model of one layer and one key head, without an end token: a response runs to its maximum length."""
    from tests.support.tiny_model import build_tiny_model

    return without_end(build_tiny_model(folder, layers=1, hidden=64, heads=2, max_length=max_length))
