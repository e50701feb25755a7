"""Computes a model's head and the log-probs of its logits together, some rows at a time: the logits of a bin are never whole.

Logits are the largest tensor of a long bin: 34,816 tokens of a vocabulary of 152,000 are 10 GiB in half precision, and as much again for
their gradient. Here each chunk of rows is multiplied by the head's weight in the forward pass, and once more in the backward pass.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from longboat_runtime.trainer import logprobs

# Rows of logits at a time. A product of fewer rows would be bound by memory: each adds to the whole weight's gradient.
ROWS = 2048
# Bytes of a bin's logits above which saving their memory is worth computing them twice.
LARGEST_LOGITS = 2**30
# The attribute of models whose log-probs `FusedHead` computes as their own head does: the bytes of a row of logits.
ROW_BYTES = "_longboat_row_bytes"


def exceeds(rows: int, row_bytes: int, limit: int = LARGEST_LOGITS) -> bool:
    """Whether `rows` rows of logits take more than `limit` bytes. Pure."""
    return rows * row_bytes > limit


def replaces(model: nn.Module, rows: int, limit: int) -> bool:
    """Whether `FusedHead` computes `rows` rows in place of the head of `model`."""
    return exceeds(rows, getattr(model, ROW_BYTES, 0), limit)


def is_plain(head: nn.Module | None) -> bool:
    """Whether a head multiplies by its weight and does nothing else. What the model does to logits is another question (`self_check`)."""
    return isinstance(head, nn.Linear) and head.bias is None


class FusedHead(torch.autograd.Function):
    """`apply(hidden, weight, targets, temperature, rows, compiled, entropies)` returns log-probs and entropies of `hidden @ weight.t()`.

    `hidden` is (K, hidden size), `weight` (vocabulary, hidden size); see `logprobs.ChosenLogprobs` for the rest. The weight's gradient
    is summed over chunks of `rows` in float32. Nothing is larger than it, or than the logits of a chunk.
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        targets: Tensor,
        temperature: float,
        rows: int,
        compiled: bool,
        entropies: bool,
    ) -> tuple[Tensor, Tensor]:
        chosen = hidden.new_empty(len(targets), dtype=torch.float32)
        normalisers, entropy = torch.empty_like(chosen), torch.empty_like(chosen)
        values = logprobs.row_values(compiled=compiled)
        for chunk in logprobs.chunks(len(targets), rows):
            logits = linear(hidden[chunk], weight)
            for part in logprobs.chunks(len(logits), logprobs.CHUNK_ROWS):
                chosen[chunk][part], normalisers[chunk][part], entropy[chunk][part] = values(
                    logits[part], targets[chunk][part], temperature
                )
        ctx.temperature, ctx.rows, ctx.compiled, ctx.entropies = temperature, rows, compiled, entropies
        per_row = (targets, normalisers, entropy) if entropies else (targets, normalisers)
        ctx.save_for_backward(hidden, weight, *per_row)
        if not entropies:
            ctx.mark_non_differentiable(entropy)
        return chosen, entropy

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        hidden, weight, *per_row = ctx.saved_tensors
        per_row += gradients if ctx.entropies else gradients[:1]
        hidden_gradient = torch.empty_like(hidden) if ctx.needs_input_grad[0] else None
        weight_gradient = None
        if ctx.needs_input_grad[1]:
            weight_gradient = torch.zeros_like(weight, dtype=torch.float32)
        for part in logprobs.chunks(len(hidden), ctx.rows):
            chunk = linear(hidden[part], weight)
            in_chunk = [each[part] for each in per_row]
            logprobs.gradient(chunk, in_chunk, ctx.temperature, logprobs.CHUNK_ROWS, chunk, compiled=ctx.compiled)
            if hidden_gradient is not None:
                torch.mm(chunk, weight, out=hidden_gradient[part])
            if weight_gradient is not None:
                # In half precision each chunk's product is rounded once, and added without a copy in float32.
                weight_gradient += chunk.t() @ hidden[part]
        return (
            hidden_gradient,
            None if weight_gradient is None else weight_gradient.to(weight.dtype),
            None,
            None,
            None,
            None,
            None,
        )


@contextmanager
def in_place_of(
    head: nn.Module, targets: Tensor, temperature: float, *, compiled: bool, entropies: bool
) -> Iterator[None]:
    """Makes `head`, within the block, return log-probs of `targets` (K) and entropies, (1, K, 2), from (1, K, hidden size).

    Replaces only its `forward`: the hooks by which FSDP2 gathers the weight and reduces its gradient stay.
    """

    def forward(hidden: Tensor) -> Tensor:
        both = FusedHead.apply(hidden[0], head.weight, targets, temperature, ROWS, compiled, entropies)
        # Not a view: FSDP2 registers hooks on a module's result.
        return torch.stack([each[None] for each in both], -1)

    head.forward = forward
    try:
        yield
    finally:
        del head.forward
