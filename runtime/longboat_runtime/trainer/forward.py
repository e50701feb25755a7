"""One forward pass through a causal language model."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule

from longboat_runtime.trainer.batch import SampleBatch
from longboat_runtime.trainer.logprobs import CHUNK_ROWS, ChosenLogprobs


def response_logprobs(model: nn.Module, batch: SampleBatch, temperature: float = 1.0) -> tuple[Tensor, Tensor]:
    """Log-probabilities (K) of the response tokens, given the tokens before them in their own sample, and entropies (K).

    A packed batch needs a model with `attention.NAME`. The model's head runs only on the K positions that predict a response
    token.
    """
    packing: dict[str, Any] = {}
    if batch.lengths is not None:
        packing = {"position_ids": batch.position_ids, "packed_lengths": batch.lengths}
    with _head_at(model, batch.predicting):
        output = model(input_ids=batch.input_ids, use_cache=False, **packing)
    logprobs, entropy = ChosenLogprobs.apply(output.logits[0], batch.targets, temperature, CHUNK_ROWS)
    return logprobs, entropy


@contextmanager
def _head_at(model: nn.Module, positions: Tensor) -> Iterator[None]:
    """Within the block the model's head sees only K positions of the flattened batch, (1, K, hidden size), and gives their logits alone.

    Transformers' `logits_to_keep` takes the same positions of every row, and not every architecture has it.
    """

    def take(_: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        hidden, *others = inputs
        return hidden.flatten(0, 1)[positions][None], *others

    hook = model.get_output_embeddings().register_forward_pre_hook(take)
    try:
        yield
    finally:
        hook.remove()


@torch.no_grad()
def frozen_logprobs(model: nn.Module, batch: SampleBatch, temperature: float = 1.0) -> Tensor:
    """`response_logprobs` without gradient or entropies.

    FSDP keeps weights outside the layers gathered from a forward pass until the backward pass frees them; without one they
    would stay, and later passes would not see new values of the shards.
    """
    logprobs, _ = response_logprobs(model, batch, temperature)
    if isinstance(model, FSDPModule):
        model.reshard()
    return logprobs
