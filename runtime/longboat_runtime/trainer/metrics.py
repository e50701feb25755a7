"""Turns sums over tokens into metrics, under verl's names where verl has them. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from longboat_crds.algorithm import ResolvedAlgorithm

# Metrics that are a mean over the tokens in the loss, and the sum each is made from.
TOKEN_MEANS = {
    "actor/entropy": "entropy",
    "actor/ppo_kl": "ppo_kl",
    "actor/pg_clipfrac": "clipped",
    "actor/pg_clipfrac_lower": "clipped_lower",
    "training/rollout_probs_diff_mean": "probs_diff",
    "mismatch_kl/k1": "mismatch_k1",
    "mismatch_kl/k3": "mismatch_k3",
    "rollout_corr/rollout_is_mean": "weight",
    "rollout_corr/rollout_is_ratio_fraction_high": "capped",
    "rollout_corr/rollout_rs_masked_fraction": "masked",
}

# Sums of losses, which are weighted as the gradient is.
LOSSES = ("pg_loss", "kl_loss", "entropy_loss")


def step_metrics(sums: Mapping[str, float], minibatches: int, algorithm: ResolvedAlgorithm) -> dict[str, float]:
    """Returns the metrics of one step from the sums over all ranks, bins and minibatches (names: `objective`).

    `minibatches` counts those that weren't skipped: `actor/pg_loss`, `actor/kl_loss` and `actor/entropy_loss` are means over them.
    `…seq_masked_fraction` is a share of the responses in the loss; those of TOKEN_MEANS are means over the tokens in the loss.
    """
    tokens = max(sums["tokens"], 1.0)
    metrics = {name: sums[key] / tokens for name, key in TOKEN_MEANS.items()}
    metrics["rollout_corr/rollout_rs_seq_masked_fraction"] = sums["masked_responses"] / max(sums["responses"], 1.0)
    metrics["training/rollout_probs_diff_max"] = sums["probs_diff_max"]
    metrics["actor/pg_loss"] = sums["pg_loss"] / minibatches
    metrics["actor/loss_tokens"] = sums["tokens"]
    if algorithm.kl_coefficient > 0:
        metrics["actor/kl_loss"] = sums["kl_loss"] / minibatches
        metrics["actor/kl_coef"] = algorithm.kl_coefficient
    if algorithm.entropy_coefficient > 0:
        metrics["actor/entropy_loss"] = sums["entropy_loss"] / minibatches
        metrics["actor/entropy_coeff"] = algorithm.entropy_coefficient
    return metrics


def is_maximum(name: str) -> bool:
    """Whether the "sum" of this name is a maximum."""
    return name.endswith("_max")
