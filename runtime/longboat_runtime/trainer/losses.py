"""The loss of single response tokens. Small pure functions of tensors of one shape, one entry for each token.

How tokens add up to the loss of a step is the business of `aggregation`.
"""

from __future__ import annotations

import torch
from torch import Tensor

# Log-ratios are held within ±20 before exponentiation: e^20 is far beyond any clip and finite in every number format.
MAX_LOG_RATIO = 20.0


def probability_ratio(logprobs: Tensor, old_logprobs: Tensor) -> Tensor:
    """new probability / old probability of every token."""
    return (logprobs - old_logprobs).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()


def policy_loss(ratio: Tensor, advantages: Tensor, clip_low: float, clip_high: float) -> Tensor:
    """-min(ratio * A, clip(ratio, 1 - clip_low, 1 + clip_high) * A).

    PPO's clipped surrogate (arXiv 1707.06347 eq. 7), negated to be minimised, with an upper clip of its own (DAPO, arXiv
    2503.14476 §3.1).
    """
    return -torch.minimum(ratio * advantages, ratio.clamp(1.0 - clip_low, 1.0 + clip_high) * advantages)


def clipped(ratio: Tensor, advantages: Tensor, clip_low: float, clip_high: float) -> Tensor:
    """True where the clip is what counts, so that the token has no gradient."""
    above = (ratio > 1.0 + clip_high) & (advantages > 0)
    below = (ratio < 1.0 - clip_low) & (advantages < 0)
    return above | below


def k3(logprobs: Tensor, reference_logprobs: Tensor) -> Tensor:
    """Estimate of KL(model || reference) from the model's own samples: r - 1 - log r with r = reference / model.

    Unbiased and never negative (http://joschu.net/blog/kl-approx.html; GRPO, arXiv 2402.03300 eq. 4).
    """
    log_ratio = (reference_logprobs - logprobs).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    return log_ratio.exp() - 1.0 - log_ratio


def importance_weight(old_logprobs: Tensor, engine_logprobs: Tensor, cap: float) -> Tensor:
    """Truncated importance weight min(trainer / engine, cap), without gradient.

    Corrects for the engine drawing tokens with slightly other probabilities than the trainer computes
    (https://fengyao.notion.site/off-policy-rl).
    """
    return probability_ratio(old_logprobs, engine_logprobs).clamp(max=cap).detach()
