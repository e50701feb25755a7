"""The publication of weights that a trainer hands to engines. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


class PublicationGone(Exception):
    """The version that a bucket is requested of has been, or is being, replaced by another one."""


@dataclass(frozen=True, slots=True)
class WeightPublication:
    """Holds the weights of one version, for engines to fetch while they may still be gathered.

    `payload` is a `source.WeightSource` in the driver, the number of buckets on the way to an engine's actor, and a
    `payload.WeightPayload` there. `probe_logprobs` are the trainer's log-probs of `probe_ids` (tokens 1..n given those before them), at
    temperature 1, in float32, from the same weights.
    """

    version: int
    payload: Any
    probe_ids: tuple[int, ...]
    probe_logprobs: tuple[float, ...]
