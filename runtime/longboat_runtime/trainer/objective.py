"""The loss of one batch, and the sums its metrics are made of."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from longboat_crds.algorithm import ClipAgainst, ResolvedAlgorithm
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
    proximal = algorithm.clip_against is ClipAgainst.PROXIMAL
    anchor = logprobs.old if proximal else batch.engine_logprobs
    ratio = losses.probability_ratio(logprobs.new, anchor)
    policy = losses.policy_loss(ratio, batch.advantages, algorithm.clip_low, algorithm.clip_high)
    if algorithm.dual_clip is not None:
        policy = losses.dual_clip(policy, batch.advantages, algorithm.dual_clip)
    weight = torch.ones_like(policy)
    if algorithm.importance_cap is not None:
        weight = losses.importance_weight(logprobs.old, batch.engine_logprobs, algorithm.importance_cap)
    tokens, responses = _masks(logprobs.old, batch, algorithm)
    weight = weight * (tokens & responses)
    policy_total = (policy * weight * batch.weights).sum()
    total = policy_total
    kl_total = torch.zeros_like(policy_total)
    if logprobs.reference is not None:
        kl_total = (losses.k3(logprobs.new, logprobs.reference) * batch.weights).sum()
        total = total + algorithm.kl_coefficient * kl_total
    with torch.no_grad():
        inside = batch.weights > 0
        by_token = _metrics(logprobs, batch, anchor, ratio, algorithm)
        by_token["masked"] = ~(tokens & responses)
        # Each token is a part of its response, so that these sums count responses.
        parts = 1.0 / batch.owners.bincount()[batch.owners].double()
        by_token |= {"responses": parts, "masked_responses": parts * ~responses}
        sums = {name: values[inside].double().sum() for name, values in by_token.items()}
        sums["tokens"] = inside.double().sum()
        sums["weight"] = weight[inside].double().sum()
        sums["pg_loss"] = policy_total.detach().double()
        sums["kl_loss"] = kl_total.detach().double()
        difference = _probability_difference(logprobs, batch)[inside]
        sums["probs_diff_max"] = difference.max().double() if len(difference) else torch.zeros_like(sums["tokens"])
    return total, sums


def _metrics(
    logprobs: TokenLogprobs, batch: SampleBatch, anchor: Tensor, ratio: Tensor, algorithm: ResolvedAlgorithm
) -> dict[str, Tensor]:
    """Per token, before summing. `ratio` is of the new probability to that of `anchor`."""
    limit = float("inf") if algorithm.dual_clip is None else algorithm.dual_clip
    return {
        "entropy": logprobs.entropy,
        "ppo_kl": anchor - logprobs.new,
        "clipped": losses.clipped(ratio, batch.advantages, algorithm.clip_low, algorithm.clip_high),
        "clipped_lower": (ratio > limit) & (batch.advantages < 0),
        "probs_diff": _probability_difference(logprobs, batch),
        "mismatch_k1": batch.engine_logprobs - logprobs.old,
        "mismatch_k3": losses.k3(batch.engine_logprobs, logprobs.old),
        "capped": losses.probability_ratio(logprobs.old, batch.engine_logprobs)
        > (algorithm.importance_cap or float("inf")),
    }


def _masks(old: Tensor, batch: SampleBatch, algorithm: ResolvedAlgorithm) -> tuple[Tensor, Tensor]:
    """Which tokens the importance mask leaves in the loss, and which the sequence mask, response by response."""
    tokens = responses = torch.ones_like(old, dtype=torch.bool)
    if algorithm.importance_mask is not None:
        low, high = algorithm.importance_mask.low, algorithm.importance_mask.high
        tokens = losses.importance_mask(old, batch.engine_logprobs, low, high)
    if algorithm.sequence_mask is not None:
        low, high = algorithm.sequence_mask.low, algorithm.sequence_mask.high
        responses = losses.sequence_mask(old, batch.engine_logprobs, batch.owners, low, high)
    return tokens, responses


def _probability_difference(logprobs: TokenLogprobs, batch: SampleBatch) -> Tensor:
    return (logprobs.old.exp() - batch.engine_logprobs.exp()).abs()
