"""What both systems are given: model, prompts, reward, batch."""

from __future__ import annotations

import json
import random
import string
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PROMPT_CHARACTERS = 32
MAX_TOKENS = 128
LEARNING_RATE = 1e-6
CLIP = 0.2


@dataclass(frozen=True, slots=True)
class Size:
    """A Qwen3 model of random weights and 264 tokens (bytes)."""

    layers: int
    hidden: int
    heads: int


@dataclass(frozen=True, slots=True)
class Case:
    """One cell of the table. A step trains `prompts` times `group_size` samples."""

    size: str
    prompts: int
    group_size: int = 8

    @property
    def samples(self) -> int:
        return self.prompts * self.group_size

    @property
    def name(self) -> str:
        return f"{self.size}-{self.samples}"


SIZES = {"0.6M": Size(4, 128, 4), "4M": Size(8, 256, 8), "17M": Size(8, 512, 8)}
CASES = [Case(size, prompts) for size in SIZES for prompts in (4, 16)]


def build_model(size: str, directory: Path) -> Path:
    """The same bytes for both systems."""
    from tests.support.tiny_model import build_tiny_model

    shape = SIZES[size]
    return build_tiny_model(directory, layers=shape.layers, hidden=shape.hidden, heads=shape.heads, max_length=512)


def prompts(count: int, seed: int) -> list[str]:
    """Random letters: every prompt has PROMPT_CHARACTERS tokens."""
    source = random.Random(seed)
    return ["".join(source.choices(string.ascii_lowercase, k=PROMPT_CHARACTERS)) for _ in range(count)]


def write_dataset(path: Path, count: int, seed: int) -> Path:
    """Rows with a `prompt` column."""
    path.write_text("".join(json.dumps({"prompt": prompt}) + "\n" for prompt in prompts(count, seed)))
    return path


def letters(prompts: Sequence[str], completions: Sequence[str], **_: Any) -> list[float]:
    """Share of lower-case letters in a completion, for both systems (TRL's signature)."""
    return [sum(character in string.ascii_lowercase for character in text) / max(1, len(text)) for text in completions]
