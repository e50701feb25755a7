"""Samples as the tensors of one forward pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from longboat_runtime.samples import FinishReason, GeneratedSample, IntArray, SampleId


@dataclass(frozen=True, slots=True)
class WeightedSample:
    """A sample with what the loss needs to know about it: `weight` is the weight of each of its response tokens (0 to ignore them)."""

    sample: GeneratedSample
    advantage: float
    weight: float


@dataclass(frozen=True, slots=True)
class SampleBatch:
    """Several samples with K response tokens in total, either packed one after another or padded, each in a row of its own.

    Packed: `input_ids` and `position_ids` are (1, T), positions start at 0 for each sample, and `lengths` are the samples' numbers of
    tokens, which add up to T. Padded: `input_ids` are (samples, longest), padded on the right, where causal attention never looks;
    `position_ids` and `lengths` are None.

    `predicting` (K) are the positions in the flattened `input_ids` whose next token is a response token, and `targets` (K) are those
    tokens. `owners` (K) are the numbers, from 0, of the samples they belong to. `advantages`, `weights` and `engine_logprobs`
    (K, float32) belong to the targets; `counted` are the positions among them whose weight isn't 0.
    """

    input_ids: Tensor
    position_ids: Tensor | None
    lengths: tuple[int, ...] | None
    predicting: Tensor
    targets: Tensor
    owners: Tensor
    advantages: Tensor
    weights: Tensor
    engine_logprobs: Tensor
    counted: Tensor

    @property
    def samples(self) -> int:
        """Counts the samples."""
        return len(self.input_ids) if self.lengths is None else len(self.lengths)


# The prompt and response that a rank without samples runs, to take part in the collectives: two tokens with weight 0.
_EMPTY_TOKENS = np.zeros(1, np.int32)


def build_batch(samples: Sequence[WeightedSample], device: torch.device, *, packed: bool = True) -> SampleBatch:
    """Builds a batch of `samples` in the given order, packed or padded; without samples, a batch of two tokens with weight 0."""
    prompts = [entry.sample.prompt_ids for entry in samples] or [_EMPTY_TOKENS]
    responses = [entry.sample.token_ids for entry in samples] or [_EMPTY_TOKENS]
    engine = [entry.sample.logprobs for entry in samples] or [np.zeros(1, np.float32)]
    advantages = [entry.advantage for entry in samples] or [0.0]
    weights = [entry.weight for entry in samples] or [0.0]
    counts = [len(response) for response in responses]
    texts = [np.concatenate(pair) for pair in zip(prompts, responses, strict=True)]
    lengths = [len(text) for text in texts]
    longest = max(lengths)
    token_weights = np.repeat(np.asarray(weights, np.float32), counts)
    starts = np.cumsum([0, *lengths[:-1]]) if packed else np.arange(len(texts)) * longest
    # The token at position p is predicted at p - 1; the last token of a sample predicts nothing.
    predicting = [
        np.arange(start + length - count - 1, start + length - 1)
        for start, length, count in zip(starts, lengths, counts, strict=True)
    ]

    def tensor(values: np.ndarray, kind: torch.dtype) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(values)).to(device=device, dtype=kind)

    if packed:
        input_ids = tensor(np.concatenate(texts), torch.int64)[None]
        position_ids = tensor(np.concatenate([np.arange(length) for length in lengths]), torch.int64)[None]
    else:
        rows = [np.pad(text, (0, longest - len(text))) for text in texts]
        input_ids, position_ids = tensor(np.stack(rows), torch.int64), None
    return SampleBatch(
        input_ids=input_ids,
        position_ids=position_ids,
        lengths=tuple(lengths) if packed else None,
        predicting=tensor(np.concatenate(predicting), torch.int64),
        targets=tensor(np.concatenate(responses), torch.int64),
        owners=tensor(np.repeat(np.arange(len(counts)), counts), torch.int64),
        advantages=tensor(np.repeat(np.asarray(advantages, np.float32), counts), torch.float32),
        weights=tensor(token_weights, torch.float32),
        engine_logprobs=tensor(np.concatenate(engine), torch.float32),
        counted=tensor(np.flatnonzero(token_weights > 0), torch.int64),
    )


def token_sample(tokens: IntArray, prompt_tokens: int) -> GeneratedSample:
    """Wraps tokens that no engine generated as a sample, to compute their log-probs."""
    response = tokens[prompt_tokens:]
    return GeneratedSample(
        id=SampleId(0, 0, 0, 0),
        prompt_ids=tokens[:prompt_tokens],
        token_ids=response,
        logprobs=np.zeros(len(response), np.float32),
        spans=(),
        finish_reason=FinishReason.STOP,
        text="",
        engine="",
    )
