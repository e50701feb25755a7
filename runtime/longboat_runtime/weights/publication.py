"""The publication of weights that a trainer hands to engines. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class WeightPublication:
    """Holds the weights of one version, ready to be fetched by engines.

    `payload` is a `payload.WeightPayload` (object references). `probe_logprobs` are the trainer's log-probs of `probe_ids` (tokens 1..n given those before them).
    """

    version: int
    payload: Any
    probe_ids: tuple[int, ...]
    probe_logprobs: tuple[float, ...]
