"""Answers of very different lengths, as reasoning models give them: the quickstart's task, model and distribution of lengths.

Median 17 tokens, mean 28, longest 244 (its limit). A larger size is the same warm-up, at a lower rate, on a larger model.
"""

from __future__ import annotations

import importlib
import random
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

QUICKSTART = Path(__file__).parents[2] / "examples" / "quickstart" / "base"

# Layers, width, and learning rate of the warm-up.
SIZES = {"0.3M": (2, 128, 3e-3), "4M": (8, 256, 1e-3)}
PROMPT_TOKENS = 4
MAX_TOKENS = 244


def _quickstart(module: str) -> Any:
    if str(QUICKSTART) not in sys.path:
        sys.path.insert(0, str(QUICKSTART))
    return importlib.import_module(module)


_countdown = _quickstart("countdown")
_reward = _quickstart("reward").reward


def build_model(size: str, directory: Path) -> None:
    """Builds the quickstart's base model in this size, its warm-up included."""
    import torch

    base = _quickstart("build_base")
    layers, hidden, rate = SIZES[size]
    torch.manual_seed(0)
    words = base.tokenizer()
    learner = base.model(len(words), layers, hidden)
    base.warm_up(learner, words, _countdown.held_out(base.HELD_OUT), rate)
    learner.save_pretrained(directory)
    words.save_pretrained(directory)


def rows(count: int, seed: int) -> list[dict[str, str]]:
    """Draws prompts of the quickstart's task, with their answers."""
    source = random.Random(seed)
    prompts = [_countdown.draw(source) for _ in range(count)]
    return [{"prompt": prompt, "answer": _countdown.answer(prompt)} for prompt in prompts]


def reward(prompts: Sequence[str], completions: Sequence[str], answer: Sequence[str], **_: Any) -> list[float]:
    """Computes the quickstart's reward, for both systems (TRL's signature)."""
    return [
        _reward(SimpleNamespace(ground_truth=right, text=text)) for right, text in zip(answer, completions, strict=True)
    ]
