"""The loss of one batch, and the sums from which its metrics are computed."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from longboat_crds.algorithm import ClipAgainst, PolicyLoss, ResolvedLoss
from longboat_runtime.trainer import losses
from longboat_runtime.trainer.batch import SampleBatch


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Log-probabilities (K) of a batch's response tokens, and entropies (K).

    `new` is computed with the weights being trained and carries the gradient, as `entropy` does if it has a coefficient; `old` with the
    round's weights, `reference` with the starting model (None without a KL term).
    """

    new: Tensor
    old: Tensor
    reference: Tensor | None
    entropy: Tensor


@dataclass(frozen=True, slots=True)
class Loss:
    """The batch's share of the step's loss: `total` is a scalar, and shares of all batches add up.

    `policy`, `kl` and `entropy` are its parts, the latter two without their coefficients. Per token (K): `anchor`, the log-probability by
    the policy that the clip is against; `ratio` of the new probability to that one, with GSPO that of the whole response; `weight`, 0 for
    tokens that a mask excludes; `tokens` and `responses` are true if the importance mask and the sequence mask include the token.
    """

    total: Tensor
    policy: Tensor
    kl: Tensor
    entropy: Tensor
    anchor: Tensor
    ratio: Tensor
    weight: Tensor
    tokens: Tensor
    responses: Tensor


def objective(logprobs: TokenLogprobs, batch: SampleBatch, algorithm: ResolvedLoss) -> Loss:
    """Sums the policy loss of every token times its weights, as `algorithm` says.

    Adds the KL term if there is a reference, and subtracts the entropies if they have a coefficient.
    """
    old, engine = logprobs.old, batch.engine_logprobs
    anchor = old if algorithm.clip_against is ClipAgainst.PROXIMAL else engine
    if algorithm.policy_loss is PolicyLoss.GSPO:
        ratio = losses.sequence_ratio(logprobs.new, anchor, batch.owners, batch.samples)
    else:
        ratio = losses.probability_ratio(logprobs.new, anchor)
    if algorithm.policy_loss is PolicyLoss.CISPO:
        policy = losses.capped_weight_loss(logprobs.new, ratio, batch.advantages, algorithm.clip_high)
    else:
        policy = losses.policy_loss(ratio, batch.advantages, algorithm.clip_low, algorithm.clip_high)
    if algorithm.dual_clip is not None:
        policy = losses.dual_clip(policy, batch.advantages, algorithm.dual_clip)
    weight = torch.ones_like(policy)
    if algorithm.importance_cap is not None:
        weight = losses.importance_weight(old, engine, algorithm.importance_cap)
    tokens = responses = torch.ones_like(old, dtype=torch.bool)
    if (bounds := algorithm.importance_mask) is not None:
        tokens = losses.importance_mask(old, engine, bounds.low, bounds.high)
    if (bounds := algorithm.sequence_mask) is not None:
        responses = losses.sequence_mask(old, engine, batch.owners, batch.samples, bounds.low, bounds.high)
    weight = weight * (tokens & responses)
    total = policy_total = (policy * weight * batch.weights).sum()
    kl_total = torch.zeros_like(policy_total)
    if logprobs.reference is not None:
        kl_total = (losses.k3(logprobs.new, logprobs.reference) * batch.weights).sum()
        total = policy_total + algorithm.kl_coefficient * kl_total
    entropy_total = torch.zeros_like(policy_total)
    if algorithm.entropy_coefficient > 0:
        entropy_total = (logprobs.entropy * batch.weights).sum()
        total = total - algorithm.entropy_coefficient * entropy_total
    return Loss(total, policy_total, kl_total, entropy_total, anchor, ratio, weight, tokens, responses)


@torch.no_grad()
def metric_sums(loss: Loss, logprobs: TokenLogprobs, batch: SampleBatch, algorithm: ResolvedLoss) -> dict[str, Tensor]:
    """Computes sums for metrics over the tokens that are in the loss; `*_max` are maxima. All are float64 scalars."""
    old, engine = logprobs.old, batch.engine_logprobs
    difference = (old.exp() - engine.exp()).abs()
    limit = float("inf") if algorithm.dual_clip is None else algorithm.dual_clip
    # Each token counts as its fraction of its sample's, so that these sums count samples, in how many segments and bins they may be.
    parts = 1.0 / batch.sample_tokens[batch.owners].double()
    clipped = losses.clipped(loss.ratio, batch.advantages, algorithm.clip_low, algorithm.clip_high)
    if algorithm.policy_loss is PolicyLoss.CISPO:
        clipped = loss.ratio > 1.0 + algorithm.clip_high
    by_token = {
        "entropy": logprobs.entropy,
        "ppo_kl": loss.anchor - logprobs.new,
        "clipped": clipped,
        "clipped_lower": (loss.ratio > limit) & (batch.advantages < 0),
        "probs_diff": difference,
        "mismatch_k1": engine - old,
        "mismatch_k3": losses.k3(engine, old),
        "capped": losses.probability_ratio(old, engine) > (algorithm.importance_cap or float("inf")),
        "masked": ~(loss.tokens & loss.responses),
        "responses": parts,
        "masked_responses": parts * ~loss.responses,
        "weight": loss.weight,
    }
    inside = batch.counted
    sums = {name: values[inside].double().sum() for name, values in by_token.items()}
    sums["tokens"] = torch.full_like(sums["weight"], len(inside))
    parts_of_loss = {"pg_loss": loss.policy, "kl_loss": loss.kl, "entropy_loss": loss.entropy}
    sums |= {name: value.detach().double() for name, value in parts_of_loss.items()}
    most = difference[inside]
    sums["probs_diff_max"] = most.max().double() if len(most) else torch.zeros_like(sums["tokens"])
    return sums
