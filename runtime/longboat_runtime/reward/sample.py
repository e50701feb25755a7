"""What a reward function is given. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class RewardSample:
    """One response and the row it answers.

    `text` is the response without special tokens, `prompt` the prompt text as the model saw it. `messages` is the chat of a
    conversational row, else None. `columns` are all columns of the row, JSON values. `finish_reason` says why the response ended:
    `stop`, `length` (cut off by maxTokens) or `repetition` (ended for repeating itself).
    """

    text: str
    prompt: str
    ground_truth: Any = None
    domain: str = ""
    columns: Mapping[str, Any] = field(default_factory=dict)
    messages: Sequence[Mapping[str, Any]] | None = None
    finish_reason: str = "stop"
