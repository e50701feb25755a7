"""A length penalty to use beside other rewards. Imports nothing large: graders are forks of the process that imports it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from longboat_graders.result import RewardSample


def soft_overlong(sample: RewardSample, max_tokens: int, buffer_tokens: int) -> float:
    """Computes DAPO's soft overlong punishment (arXiv:2503.14476, equation 13): 0 for short responses, -1 beyond `max_tokens`.

    In the last `buffer_tokens` before `max_tokens` it falls linearly from 0 to -1. Raises ValueError unless
    0 < buffer_tokens <= max_tokens.
    """
    if not 0 < buffer_tokens <= max_tokens:
        raise ValueError(
            f"buffer_tokens is {buffer_tokens}, which must be at least 1 and at most max_tokens ({max_tokens}): change the reward's parameters"
        )
    beyond = sample.tokens - (max_tokens - buffer_tokens)
    return -min(max(beyond, 0) / buffer_tokens, 1.0)
