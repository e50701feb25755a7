"""AdamW, its learning rate, and the clipping of gradients."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from longboat_crds.trainer import OptimizerSpec, Schedule


def learning_rate(spec: OptimizerSpec, step: int, steps: int) -> float:
    """Computes the learning rate of step `step` (the first is 1) of `steps`. Pure: a resumed job needs no scheduler state.

    Rises linearly over the first `warmupSteps`, then stays, or falls along a line or half a cosine that reaches zero one step after
    the last. If `steps` is raised while the job runs, each later step has the rate that it would have had from the beginning, so
    a falling rate jumps up once.
    """
    if step <= spec.warmup_steps:
        return spec.learning_rate * step / spec.warmup_steps
    if spec.schedule is Schedule.CONSTANT:
        return spec.learning_rate
    remaining = max(0.0, (steps - step + 1) / max(1, steps - spec.warmup_steps))
    if spec.schedule is Schedule.LINEAR:
        return spec.learning_rate * remaining
    return spec.learning_rate * 0.5 * (1.0 - math.cos(math.pi * remaining))


def build_optimizer(spec: OptimizerSpec, parameters: Mapping[str, nn.Parameter]) -> torch.optim.AdamW:
    """Builds AdamW (arXiv 1711.05101) over named parameters; biases and norms (one dimension) are not decayed.

    All state exists from the start, so that a checkpoint has the same keys before the first step as after it.
    """
    decayed = [parameter for parameter in parameters.values() if parameter.ndim > 1]
    others = [parameter for parameter in parameters.values() if parameter.ndim <= 1]
    optimizer = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": spec.weight_decay}, {"params": others, "weight_decay": 0.0}],
        lr=spec.learning_rate,
        betas=(spec.beta1, spec.beta2),
        eps=spec.epsilon,
        fused=True,
    )
    for parameter in parameters.values():
        optimizer.state[parameter] = {
            "step": torch.zeros((), dtype=torch.float32, device=parameter.device),
            "exp_avg": torch.zeros_like(parameter),
            "exp_avg_sq": torch.zeros_like(parameter),
        }
    return optimizer


def set_learning_rate(optimizer: torch.optim.Optimizer, value: float) -> None:
    """Sets the learning rate of all parameters."""
    for group in optimizer.param_groups:
        group["lr"] = value


def gradient_norm(gradients: list[Tensor]) -> Tensor:
    """Computes the 2-norm over all gradients of all ranks, a scalar. A collective if they are sharded."""
    norm = torch.nn.utils.get_total_norm(gradients)
    return norm.full_tensor() if hasattr(norm, "full_tensor") else norm
