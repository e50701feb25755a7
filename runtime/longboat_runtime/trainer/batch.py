"""Samples as the tensors of one packed forward pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from longboat_runtime.samples import FinishReason, GeneratedSample, IntArray, SampleId


@dataclass(frozen=True, slots=True)
class WeightedSample:
    """A sample with what the loss needs to know of it: `weight` is what each of its response tokens counts (0: nothing)."""

    sample: GeneratedSample
    advantage: float
    weight: float


@dataclass(frozen=True, slots=True)
class PackedBatch:
    """T tokens of several samples one after another, with K response tokens among them.

    `input_ids` and `position_ids` are (1, T), positions begin at 0 for each sample; `lengths` are the samples' tokens, so they
    add up to T. `predicting` (K) are the positions whose next token is a response token and `targets` (K) those tokens.
    `advantages`, `weights` and `engine_logprobs` (K, float32) belong to the targets.
    """

    input_ids: Tensor
    position_ids: Tensor
    lengths: tuple[int, ...]
    predicting: Tensor
    targets: Tensor
    advantages: Tensor
    weights: Tensor
    engine_logprobs: Tensor


# What a rank without samples runs, so that it takes part in the collectives: two tokens that count nothing.
_EMPTY_TOKENS = np.zeros(1, np.int32)


def pack_batch(samples: Sequence[WeightedSample], device: torch.device) -> PackedBatch:
    """Packs `samples` in the given order; without samples, one of two tokens with weight 0."""
    prompts = [entry.sample.prompt_ids for entry in samples] or [_EMPTY_TOKENS]
    responses = [entry.sample.token_ids for entry in samples] or [_EMPTY_TOKENS]
    engine = [entry.sample.logprobs for entry in samples] or [np.zeros(1, np.float32)]
    advantages = [entry.advantage for entry in samples] or [0.0]
    weights = [entry.weight for entry in samples] or [0.0]
    lengths = [len(prompt) + len(response) for prompt, response in zip(prompts, responses, strict=True)]
    ends = np.cumsum(lengths)
    # The token at position p is predicted at p - 1, the last token of a sample predicts nothing.
    predicting = [np.arange(end - len(response) - 1, end - 1) for end, response in zip(ends, responses, strict=True)]
    counts = [len(response) for response in responses]
    tokens = np.concatenate([part for pair in zip(prompts, responses, strict=True) for part in pair])

    def tensor(values: np.ndarray, kind: torch.dtype) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(values)).to(device=device, dtype=kind)

    return PackedBatch(
        input_ids=tensor(tokens, torch.int64)[None],
        position_ids=tensor(np.concatenate([np.arange(length) for length in lengths]), torch.int64)[None],
        lengths=tuple(lengths),
        predicting=tensor(np.concatenate(predicting), torch.int64),
        targets=tensor(np.concatenate(responses), torch.int64),
        advantages=tensor(np.repeat(np.asarray(advantages, np.float32), counts), torch.float32),
        weights=tensor(np.repeat(np.asarray(weights, np.float32), counts), torch.float32),
        engine_logprobs=tensor(np.concatenate(engine), torch.float32),
    )


def token_sample(tokens: IntArray, prompt_tokens: int) -> GeneratedSample:
    """Tokens that nobody generated as a sample, to be given log-probs."""
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
