"""One packed forward pass through a causal language model."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule

from longboat_runtime.trainer.batch import PackedBatch
from longboat_runtime.trainer.logprobs import chosen_logprobs


def packed_logprobs(model: nn.Module, batch: PackedBatch, temperature: float = 1.0) -> tuple[Tensor, Tensor]:
    """Log-probabilities (K) of the response tokens, given what stands before them in their own sample, and entropies (K).

    The model's head runs on the K positions that predict a response token only.
    """
    output = model(
        input_ids=batch.input_ids,
        position_ids=batch.position_ids,
        packed_lengths=batch.lengths,
        logits_to_keep=batch.predicting,
        use_cache=False,
    )
    return chosen_logprobs(output.logits[0], batch.targets, temperature)


@torch.no_grad()
def frozen_logprobs(model: nn.Module, batch: PackedBatch, temperature: float = 1.0) -> Tensor:
    """`packed_logprobs` without gradient or entropies.

    FSDP keeps what is outside the layers gathered from a forward pass until the backward pass frees it; without one it would
    stay, and later passes would not see new values of the shards.
    """
    logprobs, _ = packed_logprobs(model, batch, temperature)
    if isinstance(model, FSDPModule):
        model.reshard()
    return logprobs
