"""The loss of one batch, and the sums its metrics are made of."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from longboat_crds.algorithm import ResolvedAlgorithm
from longboat_runtime.trainer import losses
from longboat_runtime.trainer.batch import SampleBatch


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Log-probabilities (K) of a batch's response tokens, and entropies (K, no gradient).

    `new` is of the weights being trained and carries the gradient, `old` of the round's weights, `reference` of the starting
    model (None without KL term).
    """

    new: Tensor
    old: Tensor
    reference: Tensor | None
    entropy: Tensor


def objective(
    logprobs: TokenLogprobs, batch: SampleBatch, algorithm: ResolvedAlgorithm
) -> tuple[Tensor, dict[str, Tensor]]:
    """The batch's share of the step's loss (a scalar; shares of all batches add up), and sums for metrics.

    Sums run over the tokens that are in the loss; `*_max` is a maximum. All are float64 scalars without gradient.
    """
    ratio = losses.probability_ratio(logprobs.new, logprobs.old)
    policy = losses.policy_loss(ratio, batch.advantages, algorithm.clip_low, algorithm.clip_high)
    weight = torch.ones_like(policy)
    if algorithm.importance_cap is not None:
        weight = losses.importance_weight(logprobs.old, batch.engine_logprobs, algorithm.importance_cap)
    policy_total = (policy * weight * batch.weights).sum()
    total = policy_total
    kl_total = torch.zeros_like(policy_total)
    if logprobs.reference is not None:
        kl_total = (losses.k3(logprobs.new, logprobs.reference) * batch.weights).sum()
        total = total + algorithm.kl_coefficient * kl_total
    with torch.no_grad():
        inside = batch.weights > 0
        sums = {
            name: values[inside].double().sum() for name, values in _metrics(logprobs, batch, ratio, algorithm).items()
        }
        sums["tokens"] = inside.double().sum()
        sums["weight"] = weight[inside].double().sum()
        sums["pg_loss"] = policy_total.detach().double()
        sums["kl_loss"] = kl_total.detach().double()
        difference = _probability_difference(logprobs, batch)[inside]
        sums["probs_diff_max"] = difference.max().double() if len(difference) else torch.zeros_like(sums["tokens"])
    return total, sums


def _metrics(
    logprobs: TokenLogprobs, batch: SampleBatch, ratio: Tensor, algorithm: ResolvedAlgorithm
) -> dict[str, Tensor]:
    """Per token, before summing."""
    return {
        "entropy": logprobs.entropy,
        "ppo_kl": logprobs.old - logprobs.new,
        "clipped": losses.clipped(ratio, batch.advantages, algorithm.clip_low, algorithm.clip_high),
        "probs_diff": _probability_difference(logprobs, batch),
        "mismatch_k1": batch.engine_logprobs - logprobs.old,
        "mismatch_k3": losses.k3(batch.engine_logprobs, logprobs.old),
        "capped": losses.probability_ratio(logprobs.old, batch.engine_logprobs)
        > (algorithm.importance_cap or float("inf")),
    }


def _probability_difference(logprobs: TokenLogprobs, batch: SampleBatch) -> Tensor:
    return (logprobs.old.exp() - batch.engine_logprobs.exp()).abs()
