"""A model's config.json, whatever its architecture calls things."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def language_model(content: Mapping[str, Any]) -> dict[str, Any]:
    """The language model's part of `content`, under the names that transformers has for all architectures too.

    GPT-2, for one, has `n_positions` and `n_head` for `max_position_embeddings` and `num_attention_heads`: the attribute map of an
    architecture's config class says so.
    """
    from transformers import CONFIG_MAPPING

    text = dict(content.get("text_config") or content)
    kind = text.get("model_type")
    names = CONFIG_MAPPING[kind].attribute_map if kind in CONFIG_MAPPING else {}
    return {standard: text[own] for standard, own in names.items() if own in text} | text
