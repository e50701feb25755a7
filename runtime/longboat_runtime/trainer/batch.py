"""Segments as the tensors of one forward pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from longboat_runtime.samples import FinishReason, GeneratedSample, IntArray, SampleId, Segment, TokenRange


@dataclass(frozen=True, slots=True)
class WeightedSegment:
    """Segment number `number` of a sample with what the loss needs to know: `weight` is that of each trained token (0 to ignore them)."""

    sample: GeneratedSample
    advantage: float
    weight: float
    number: int = 0

    @property
    def segment(self) -> Segment:
        return self.sample.segments[self.number]


@dataclass(frozen=True, slots=True)
class SampleBatch:
    """Several segments with K trained tokens in total, either packed one after another or padded, each in a row of its own.

    Packed: `input_ids` and `position_ids` are (1, T), positions start at 0 for each segment, and `lengths` are the segments' numbers of
    tokens, which add up to T. Padded: `input_ids` are (segments, longest), padded on the right, where causal attention never looks;
    `position_ids` and `lengths` are None.

    `predicting` (K) are the positions in the flattened `input_ids` whose next token is trained, and `targets` (K) are those tokens.
    `owners` (K) are the numbers, from 0, of the samples they belong to, and `sample_tokens` counts the trained tokens of each of these
    samples, those in other batches included. `advantages`, `weights` and `engine_logprobs` (K, float32) belong to the targets; `counted`
    are the positions among them whose weight isn't 0.
    """

    input_ids: Tensor
    position_ids: Tensor | None
    lengths: tuple[int, ...] | None
    predicting: Tensor
    targets: Tensor
    owners: Tensor
    sample_tokens: Tensor
    advantages: Tensor
    weights: Tensor
    engine_logprobs: Tensor
    counted: Tensor

    @property
    def samples(self) -> int:
        """Counts the samples that the segments are of."""
        return len(self.sample_tokens)


# What a rank without segments runs, to take part in the collectives: two tokens with weight 0.
_EMPTY = GeneratedSample(
    SampleId(0, 0, 0, 0),
    (Segment(np.zeros(2, np.int32), (TokenRange(1, 2),), np.zeros(1, np.float32), ()),),
    FinishReason.STOP,
    text="",
    engine="",
)


def build_batch(segments: Sequence[WeightedSegment], device: torch.device, *, packed: bool = True) -> SampleBatch:
    """Builds a batch of `segments` in the given order, packed or padded; without any, a batch of two tokens with weight 0."""
    entries = segments or [WeightedSegment(_EMPTY, 0.0, 0.0)]
    texts = [entry.segment.token_ids for entry in entries]
    positions = [entry.segment.positions for entry in entries]
    counts, lengths = [*map(len, positions)], [*map(len, texts)]
    longest = max(lengths)
    samples = {entry.sample.id: entry.sample.size.trained for entry in entries}
    numbers = {sample: number for number, sample in enumerate(samples)}
    token_weights = np.repeat(np.asarray([entry.weight for entry in entries], np.float32), counts)
    starts = np.cumsum([0, *lengths[:-1]]) if packed else np.arange(len(texts)) * longest
    # The token at position p is predicted at p - 1; the last token of a segment predicts nothing.
    predicting = [start + trained - 1 for start, trained in zip(starts, positions, strict=True)]

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
        targets=tensor(np.concatenate([text[i] for text, i in zip(texts, positions, strict=True)]), torch.int64),
        owners=tensor(np.repeat([numbers[entry.sample.id] for entry in entries], counts), torch.int64),
        sample_tokens=tensor(np.asarray([*samples.values()]), torch.int64),
        advantages=tensor(
            np.repeat(np.asarray([entry.advantage for entry in entries], np.float32), counts), torch.float32
        ),
        weights=tensor(token_weights, torch.float32),
        engine_logprobs=tensor(np.concatenate([entry.segment.logprobs for entry in entries]), torch.float32),
        counted=tensor(np.flatnonzero(token_weights > 0), torch.int64),
    )


def token_sample(tokens: IntArray, prompt_tokens: int) -> GeneratedSample:
    """Wraps tokens that no engine generated as a sample, to compute their log-probs."""
    response = tokens[prompt_tokens:]
    segment = Segment.single_turn(tokens[:prompt_tokens], response, np.zeros(len(response), np.float32), ())
    return GeneratedSample(
        id=SampleId(0, 0, 0, 0),
        segments=(segment,),
        finish_reason=FinishReason.STOP,
        text="",
        engine="",
    )
