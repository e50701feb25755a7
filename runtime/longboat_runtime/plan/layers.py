"""Decides which layers of a model stand for all of them. Pure, but for the model that it lists."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

# Layers of a shortened model: FSDP gathers one ahead, and experts' weights live longer than that.
LEAST, LEAST_OF_EXPERTS = 2, 4
# The least difference between both.
STEP = 2
# The longest pattern of layers that is searched for.
LONGEST_PERIOD = 12


@dataclass(frozen=True, slots=True)
class Shortened:
    """Two numbers of layers, `counts`, that differ by whole periods of the model's `layers`."""

    layers: int
    counts: tuple[int, int]

    def config(self, content: Mapping[str, Any], count: int) -> dict[str, Any]:
        """Returns the config.json of the model with `count` layers. Pure."""
        result = dict(content)
        if isinstance(text := result.get("text_config"), dict):
            return result | {"text_config": self.config(text, count)}
        for name, value in result.items():
            if isinstance(value, list) and len(value) == self.layers:
                result[name] = value[:count]
        for name in ("num_hidden_layers", "n_layer", "num_layers", "n_layers"):
            if result.get(name) == self.layers:
                result[name] = count
        return result


def shortened(config: Any) -> Shortened | None:
    """Returns the numbers of layers to trace for a model; None if it has hardly more, or its layers follow no pattern."""
    kinds = layer_kinds(config)
    least = LEAST_OF_EXPERTS if any("experts" in name for kind in kinds for name, _ in kind) else LEAST
    counts = repeating(kinds, least)
    return Shortened(len(kinds), counts) if counts else None


def repeating(kinds: Sequence[Any], least: int) -> tuple[int, int] | None:
    """Returns two numbers of layers, whole periods apart, after which `kinds` only repeats; None if it never does. Pure.

    Neither is below `least`. Both end at the same place of the pattern as all layers do.
    """
    layers = len(kinds)
    for period in range(1, min(LONGEST_PERIOD, layers - 1) + 1):
        # The number of first layers that don't repeat.
        start = next((i + 1 for i in range(layers - period - 1, -1, -1) if kinds[i] != kinds[i + period]), 0)
        fewer = max(least, start + period)
        fewer += (layers - fewer) % period
        if fewer + max(period, STEP) < layers:
            return fewer, fewer + max(period, STEP - STEP % period)
    return None


def layer_kinds(config: Any) -> list[tuple[Any, ...]]:
    """Describes each layer of the model by names and shapes of its weights, and by its entries in lists of the config."""
    from transformers import AutoModelForCausalLM

    from longboat_runtime.trainer.sharding import layers

    text = config.get_text_config()
    with torch.device("meta"):
        blocks = layers(AutoModelForCausalLM.from_config(config, dtype=torch.float32))
    lists = [value for value in vars(text).values() if isinstance(value, list) and len(value) == text.num_hidden_layers]
    return [
        (
            *((name, tuple(weight.shape)) for name, weight in block.named_parameters()),
            *(("", str(value[index])) for value in lists),
        )
        for index, block in enumerate(blocks)
        if len(blocks) == text.num_hidden_layers
    ]
