"""Models of the sizes people train, with random weights, made from a config and written one file after another."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

# The shapes of Qwen2.5, but the first two: hidden size, intermediate size, layers, heads, key heads, tied embeddings.
SHAPES = {
    "tiny": (64, 128, 2, 4, 2, False),
    "70M": (640, 2560, 8, 10, 2, True),
    "0.5B": (896, 4864, 24, 14, 2, True),
    "1.5B": (1536, 8960, 28, 12, 2, True),
    "3B": (2048, 11008, 36, 16, 2, True),
    "7B": (3584, 18944, 28, 28, 4, False),
}
VOCABULARY = {"tiny": 512, "70M": 32768}
LARGEST_FILE = 4 << 30


def build_model(size: str, directory: Path) -> Path:
    """Writes config and bfloat16 weights, in files of at most 4 GiB with an index, into `directory` unless they are there."""
    from transformers import AutoModelForCausalLM, Qwen2Config

    index = directory / "model.safetensors.index.json"
    if index.is_file():
        return directory
    directory.mkdir(parents=True, exist_ok=True)
    hidden, intermediate, layers, heads, key_heads, tied = SHAPES[size]
    config = Qwen2Config(
        architectures=["Qwen2ForCausalLM"],
        vocab_size=VOCABULARY.get(size, 151936),
        hidden_size=hidden,
        intermediate_size=intermediate,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=key_heads,
        max_position_embeddings=32768,
        tie_word_embeddings=tied,
        dtype="bfloat16",
    )
    config.save_pretrained(directory)
    with torch.device("meta"):
        weights = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).state_dict()
    if tied:
        del weights["lm_head.weight"]
    # Drawing billions of numbers takes minutes; repeating a million of them serves as well here.
    drawn = torch.randn(1 << 20, generator=torch.Generator().manual_seed(0)).mul_(0.02).bfloat16()
    where: dict[str, str] = {}
    for number, names in enumerate(_files(weights), start=1):
        file = f"model-{number:05}.safetensors"
        save_file({name: _values(name, weights[name], drawn) for name in names}, directory / file, {"format": "pt"})
        where |= dict.fromkeys(names, file)
    index.write_text(json.dumps({"metadata": {}, "weight_map": where}))
    return directory


def _files(weights: dict[str, Any]) -> list[list[str]]:
    files: list[list[str]] = [[]]
    size = 0
    for name, weight in weights.items():
        if files[-1] and size + weight.nbytes > LARGEST_FILE:
            files.append([])
            size = 0
        files[-1].append(name)
        size += weight.nbytes
    return files


def _values(name: str, weight: torch.Tensor, drawn: torch.Tensor) -> torch.Tensor:
    if "norm" in name:
        return torch.ones(weight.shape, dtype=weight.dtype)
    repeats = -(-weight.numel() // drawn.numel())
    return drawn.repeat(repeats)[: weight.numel()].view(weight.shape).contiguous()
