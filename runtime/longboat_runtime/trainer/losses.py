"""The loss of single response tokens: small pure functions of tensors of the same shape, with one entry per token.

`aggregation` defines how tokens add up to the loss of a step.
"""

from __future__ import annotations

import torch
from torch import Tensor

# Log-ratios are clamped to ±20 before exponentiation: e^20 is far beyond any clip, and finite in float32.
MAX_LOG_RATIO = 20.0

# The T*KL (tokens of a response times the KL divergence per token) at which half of all responses pass `sequence_mask` with bounds
# 1/2 and 2: the x at which Phi((log 2 + x) / sqrt(2x)) - Phi((x - log 2) / sqrt(2x)) is a half.
SEQUENCE_MASK_HALF = 0.43


def probability_ratio(logprobs: Tensor, old_logprobs: Tensor) -> Tensor:
    """Computes new probability / old probability of every token; its logarithm is clamped to ±MAX_LOG_RATIO."""
    return (logprobs - old_logprobs).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()


def sequence_ratio(logprobs: Tensor, old_logprobs: Tensor, owners: Tensor, responses: int) -> Tensor:
    """Computes for every token the ratio s of its whole response: exp of the mean log-ratio over the response's tokens.

    `owners[k]` is the number, below `responses`, of the response that token k belongs to. The logarithm of s is clamped to ±MAX_LOG_RATIO. The token form of
    GSPO (arXiv 2507.18071 §4.3): the value is s, the gradient is s times that of the token's own log-probability. With one advantage for a
    response and the mean over its tokens (SequenceMean), its tokens' gradients add up to that of s (§4.1).
    """
    log_ratio = (logprobs - old_logprobs).detach()
    counts = response_tokens(owners, responses).clamp(min=1)
    means = log_ratio.new_zeros(responses).index_add(0, owners, log_ratio) / counts
    ratio = means.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()[owners]
    return ratio * (logprobs - logprobs.detach()).exp()


def response_tokens(owners: Tensor, responses: int) -> Tensor:
    """Counts the tokens of each response (responses); `owners` are as in `sequence_ratio`. Reads no value on the host."""
    return owners.new_zeros(responses).index_add(0, owners, torch.ones_like(owners))


def policy_loss(ratio: Tensor, advantages: Tensor, clip_low: float, clip_high: float) -> Tensor:
    """Computes -min(ratio * A, clip(ratio, 1 - clip_low, 1 + clip_high) * A).

    PPO's clipped surrogate (arXiv 1707.06347 eq. 7), negated to be minimised, with a separate upper clip (DAPO, arXiv
    2503.14476 §3.1). `algorithm.clipAgainst` chooses the old policy in the ratio:

    * the behaviour policy, which drew the token: PPO as published. The ratio is also the importance weight.
    * the proximal policy, with the weights at the beginning of the step: decoupled PPO (arXiv 2110.00641 §3; AReaL, arXiv
      2505.24298 §5.2). The loss is then multiplied by `importance_weight`, unless the cap is 0.
    """
    return -torch.minimum(ratio * advantages, ratio.clamp(1.0 - clip_low, 1.0 + clip_high) * advantages)


def capped_weight_loss(logprobs: Tensor, ratio: Tensor, advantages: Tensor, clip_high: float) -> Tensor:
    """Computes -w * A * log-probability with the constant weight w = min(ratio, 1 + clip_high), which has no gradient.

    CISPO (MiniMax-M1, arXiv 2506.13585 §3.1) without a lower bound, as its authors trained. Where PPO leaves a clipped token
    without gradient, here it keeps one, of limited weight.
    """
    return -ratio.detach().clamp(max=1.0 + clip_high) * advantages * logprobs


def dual_clip(loss: Tensor, advantages: Tensor, limit: float) -> Tensor:
    """Limits `loss` of `policy_loss` to -limit * A if A is negative, with limit > 1 (arXiv 1912.09729 eq. 5).

    For negative A, PPO's loss grows with the ratio without bound: a token that was unlikely when it was drawn, and no longer is,
    would outweigh all others. Beyond the limit it has no gradient.
    """
    return torch.where(advantages < 0, torch.minimum(loss, -limit * advantages), loss)


def clipped(ratio: Tensor, advantages: Tensor, clip_low: float, clip_high: float) -> Tensor:
    """Returns True where the clip is active, so that the token has no gradient."""
    above = (ratio > 1.0 + clip_high) & (advantages > 0)
    below = (ratio < 1.0 - clip_low) & (advantages < 0)
    return above | below


def k3(logprobs: Tensor, reference_logprobs: Tensor) -> Tensor:
    """Estimates KL(model || reference) from the model's own samples: r - 1 - log r with r = reference / model.

    Never negative but for rounding, and unbiased but for the clamp of log r (http://joschu.net/blog/kl-approx.html; GRPO, arXiv
    2402.03300 eq. 4).
    """
    log_ratio = (reference_logprobs - logprobs).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    return log_ratio.exp() - 1.0 - log_ratio


def importance_weight(old_logprobs: Tensor, engine_logprobs: Tensor, cap: float) -> Tensor:
    """Computes the truncated importance weight min(trainer / engine, cap), without gradient.

    Corrects for the engine drawing tokens with probabilities other than those that the trainer computes
    (https://fengyao.notion.site/off-policy-rl).
    """
    return probability_ratio(old_logprobs, engine_logprobs).clamp(max=cap).detach()


def importance_mask(old_logprobs: Tensor, engine_logprobs: Tensor, low: float, high: float) -> Tensor:
    """Returns True where low <= trainer / engine <= high; other tokens are excluded from the loss.

    Masked importance sampling with bounds on both sides (IcePop, arXiv 2510.18855, section on IcePop): unlike a cap it also drops
    tokens that the trainer has become unlikely to draw, and gives no weight to tokens whose weight is least reliable.
    """
    ratio = probability_ratio(old_logprobs, engine_logprobs)
    return ((low <= ratio) & (ratio <= high)).detach()


def sequence_mask(
    old_logprobs: Tensor, engine_logprobs: Tensor, owners: Tensor, responses: int, low: float, high: float
) -> Tensor:
    """Returns True for all tokens of a response for which low <= trainer / engine <= high as a whole.

    `owners[k]` is the number, below `responses`, of the response that token k belongs to. Liu, Li et al., "When Speed Kills Stability", section on
    sequence-level masked importance sampling.

    The ratio of the whole response is the product of the ratios of its T tokens. If their logarithms are small and independent, the
    logarithm of the product is about normal with mean -T*KL and variance 2*T*KL (the ratio's expectation is 1), so few long
    responses or responses of old weights pass: with [1/2, 2], half of all responses pass at T*KL = SEQUENCE_MASK_HALF, fewer above.
    """
    log_ratio = old_logprobs - engine_logprobs
    totals = log_ratio.new_zeros(responses).index_add(0, owners, log_ratio)
    ratio = totals.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()[owners]
    return ((low <= ratio) & (ratio <= high)).detach()
