"""Answers of similar length: most of those of a random model run to the limit, so padding costs little here."""

from __future__ import annotations

import random
import string
from collections.abc import Sequence
from pathlib import Path
from typing import Any

# Layers, width, heads. Random weights, 264 tokens (bytes).
SIZES = {"0.6M": (4, 128, 4), "4M": (8, 256, 8)}
PROMPT_TOKENS = 32
MAX_TOKENS = 128


def build_model(size: str, directory: Path) -> None:
    """Builds a model of this size with random weights in `directory`."""
    from tests.support.tiny_model import build_tiny_model

    layers, hidden, heads = SIZES[size]
    build_tiny_model(directory, layers=layers, hidden=hidden, heads=heads, max_length=512)


def rows(count: int, seed: int) -> list[dict[str, str]]:
    """Makes rows with prompts of random letters."""
    source = random.Random(seed)
    return [{"prompt": "".join(source.choices(string.ascii_lowercase, k=PROMPT_TOKENS))} for _ in range(count)]


def reward(prompts: Sequence[str], completions: Sequence[str], **_: Any) -> list[float]:
    """Returns the share of lower-case letters in each completion, 0 if it is empty, for both systems (TRL's signature)."""
    return [sum(character in string.ascii_lowercase for character in text) / max(1, len(text)) for text in completions]
