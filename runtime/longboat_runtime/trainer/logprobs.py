"""Log-probabilities of chosen tokens, a few rows of logits at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

# Rows of logits held in float32 at a time: 512 rows of a vocabulary of 152,000 are 300 MiB.
CHUNK_ROWS = 512


class ChosenLogprobs(torch.autograd.Function):
    """`apply(logits, targets, temperature, rows, compiled, entropies)` returns natural log-probabilities of one token per row, and entropies.

    `logits` (K, vocabulary) of any float type are divided by `temperature`; `targets` (K) are the tokens. Both results are (K)
    and float32, entropies in nats; they carry a gradient only if `entropies`. `rows` limits how many rows are held in float32 at a time:
    use CHUNK_ROWS unless there is a reason not to. `compiled` says whether by kernels that torch compiles.

    Nothing of the size of the logits is kept except the logits themselves, from which their gradient is recomputed.
    """

    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, targets: Tensor, temperature: float, rows: int, compiled: bool, entropies: bool
    ) -> tuple[Tensor, Tensor]:
        chosen = logits.new_empty(len(targets), dtype=torch.float32)
        normalisers, entropy = torch.empty_like(chosen), torch.empty_like(chosen)
        values = row_values(compiled=compiled)
        for part in chunks(len(targets), rows):
            chosen[part], normalisers[part], entropy[part] = values(logits[part], targets[part], temperature)
        ctx.temperature, ctx.rows, ctx.compiled, ctx.entropies = temperature, rows, compiled, entropies
        if entropies:
            ctx.save_for_backward(logits, targets, normalisers, entropy)
        else:
            ctx.save_for_backward(logits, targets, normalisers)
            ctx.mark_non_differentiable(entropy)
        return chosen, entropy

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None, None, None]:
        logits, *per_row = ctx.saved_tensors
        per_row += gradients if ctx.entropies else gradients[:1]
        result = torch.empty_like(logits)
        gradient(logits, per_row, ctx.temperature, ctx.rows, result, compiled=ctx.compiled)
        return result, None, None, None, None, None


def row_values(*, compiled: bool) -> Callable[..., tuple[Tensor, Tensor, Tensor]]:
    """Returns a function from rows of logits to log-probs of targets, normalisers and entropies. It casts the rows to float32."""
    return _compiled(_values) if compiled else _values


def chunks(size: int, rows: int) -> Iterator[slice]:
    """Yields slices that cut `size` rows into chunks of `rows`."""
    return (slice(start, start + rows) for start in range(0, size, rows))


def gradient(
    logits: Tensor, per_row: Sequence[Tensor], temperature: float, rows: int, result: Tensor, *, compiled: bool
) -> None:
    """Writes the gradient of `logits` into `result`, which may be `logits` itself, `rows` rows at a time.

    `per_row`, each (K), are targets, normalisers and the gradients of log-probs; if entropies have a gradient, targets, normalisers,
    entropies, and both gradients.
    """
    function: Callable[..., Tensor] = _gradient if len(per_row) == 3 else _gradient_with_entropy
    computed = _compiled(function) if compiled else function
    for part in chunks(len(logits), rows):
        result[part] = computed(logits[part], *(each[part] for each in per_row), temperature)


def _values(logits: Tensor, targets: Tensor, temperature: float) -> tuple[Tensor, Tensor, Tensor]:
    """Computes log-probs of `targets`, normalisers and entropies of some rows."""
    scaled = logits.float() / temperature
    normalisers = scaled.logsumexp(-1)
    chosen = scaled.gather(-1, targets[:, None])[:, 0] - normalisers
    return chosen, normalisers, torch.special.entr(scaled.sub(normalisers[:, None]).exp()).sum(-1)


def _gradient(logits: Tensor, targets: Tensor, normalisers: Tensor, gradients: Tensor, temperature: float) -> Tensor:
    """Computes the gradient of some rows of logits, in their type."""
    scale = gradients[:, None] / temperature
    gradient = (logits.float() / temperature - normalisers[:, None]).exp() * -scale
    return gradient.scatter_add_(-1, targets[:, None], scale).to(logits.dtype)


def _gradient_with_entropy(
    logits: Tensor,
    targets: Tensor,
    normalisers: Tensor,
    entropy: Tensor,
    gradients: Tensor,
    entropy_gradients: Tensor,
    temperature: float,
) -> Tensor:
    """Computes the gradient of some rows of logits, in their type, where entropies have one too.

    The entropy's, for a logit of probability p, is -p (log p + entropy) / temperature. It holds no more rows than `_gradient`: two.
    """
    scale, entropy_scale = gradients[:, None] / temperature, entropy_gradients[:, None] / temperature
    probabilities = (logits.float() / temperature - normalisers[:, None]).exp()
    # entr is -p log p, and 0 for a token that is impossible.
    gradient = torch.special.entr(probabilities).mul_(entropy_scale)
    gradient.addcmul_(probabilities, scale + entropy[:, None] * entropy_scale, value=-1.0)
    del probabilities
    return gradient.scatter_add_(-1, targets[:, None], scale).to(logits.dtype)


@cache
def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compiles a function for any number of rows."""
    compiled: Callable[..., Any] = torch.compile(function, dynamic=True)
    return compiled
