"""The reward of drawn lengths: something that differs between responses. Nothing is learned from it."""

from __future__ import annotations


def reward(prompts: list[str], completions: list[str], **_: object) -> list[float]:
    """Returns the share of characters with even code points in each completion, 0 for an empty one (TRL's signature)."""
    return [sum(ord(character) % 2 == 0 for character in text) / max(1, len(text)) for text in completions]
