"""Log-probabilities of chosen tokens, a few rows of logits at a time."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

# Rows of logits held in float32 at a time: 512 rows of a vocabulary of 152,000 are 300 MiB.
CHUNK_ROWS = 512


class ChosenLogprobs(torch.autograd.Function):
    """`apply(logits, targets, temperature, rows)` returns the natural log-probability of one token per row, and entropies in nats.

    `logits` (K, vocabulary) of any float type are divided by `temperature`; `targets` (K) are the tokens. Both results are (K)
    and float32; the entropy carries no gradient. `rows` limits how many rows are held in float32 at a time: use CHUNK_ROWS unless
    there is a reason not to.

    Nothing of the size of the logits is kept except the logits themselves, from which their gradient is recomputed.
    """

    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor, temperature: float, rows: int) -> tuple[Tensor, Tensor]:
        chosen = logits.new_empty(len(targets), dtype=torch.float32)
        normalisers, entropy = torch.empty_like(chosen), torch.empty_like(chosen)
        for start in range(0, len(targets), rows):
            part = slice(start, start + rows)
            scaled = logits[part].float() / temperature
            normaliser = scaled.logsumexp(-1)
            normalisers[part] = normaliser
            chosen[part] = scaled.gather(-1, targets[part, None])[:, 0] - normaliser
            entropy[part] = torch.special.entr(scaled.sub(normaliser[:, None]).exp()).sum(-1)
        ctx.save_for_backward(logits, targets, normalisers)
        ctx.temperature, ctx.rows = temperature, rows
        ctx.mark_non_differentiable(entropy)
        return chosen, entropy

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        logits, targets, normalisers = ctx.saved_tensors
        result = torch.empty_like(logits)
        for start in range(0, len(targets), ctx.rows):
            part = slice(start, start + ctx.rows)
            scale = gradients[0][part, None] / ctx.temperature
            gradient = (logits[part].float() / ctx.temperature - normalisers[part, None]).exp() * -scale
            gradient.scatter_add_(-1, targets[part, None], scale)
            result[part] = gradient.to(logits.dtype)
        return result, None, None, None
