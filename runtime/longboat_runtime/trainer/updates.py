"""The optimizer updates of one step on this rank."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn

from longboat_crds.algorithm import resolve
from longboat_crds.job import RLJobSpec
from longboat_crds.model import DType
from longboat_crds.reasons import Reason
from longboat_runtime.problems import SpecProblem
from longboat_runtime.trainer.batch import SampleBatch
from longboat_runtime.trainer.forward import frozen_logprobs, response_logprobs
from longboat_runtime.trainer.metrics import is_maximum, step_metrics
from longboat_runtime.trainer.objective import TokenLogprobs, objective
from longboat_runtime.trainer.optimizer import build_optimizer, gradient_norm, learning_rate, set_learning_rate

# Gradients of Float16 are computed times this, so that small ones don't vanish; halved for as long as an update overflows.
FLOAT16_SCALE = 2.0**16


class Updates:
    """Model, optimizer and how gradients become updates. `run` and `accumulate` are collectives."""

    def __init__(self, spec: RLJobSpec, model: nn.Module, reference: nn.Module | None) -> None:
        self.spec, self.model, self.reference = spec, model, reference
        self.algorithm = resolve(spec.algorithm)
        self.parameters = dict(model.named_parameters())
        self.optimizer = build_optimizer(spec.trainer.optimizer, self.parameters)
        self.loss_scale = FLOAT16_SCALE if spec.model.dtype is DType.FLOAT16 else 1.0

    def run(self, step: int, steps: int, minibatches: Sequence[Sequence[SampleBatch]]) -> dict[str, float]:
        """One update for each minibatch of step `step` of `steps`; returns metrics. Every rank gives equally many batches in each.

        Raises SpecProblem if a gradient is not finite; updates of earlier minibatches have then been made.
        """
        started = time.monotonic()
        old = self._old_logprobs(minibatches)
        reference = [self._frozen_logprobs(self.reference, batches) for batches in minibatches]
        prepared = time.monotonic()
        rate = learning_rate(self.spec.trainer.optimizer, step, steps)
        set_learning_rate(self.optimizer, rate)
        norms: list[float] = []
        parts: list[dict[str, Tensor]] = []
        for index, batches in enumerate(minibatches):
            norm, of_batches = self._update(step, batches, old[index], reference[index])
            norms.append(norm)
            parts += of_batches
        metrics = step_metrics(_reduce(parts), len(minibatches), self.algorithm.kl_coefficient)
        return metrics | {
            "actor/grad_norm": sum(norms) / len(norms),
            "actor/lr": rate,
            "timing_s/old_log_prob": prepared - started,
            "timing_s/update_actor": time.monotonic() - prepared,
        }

    def accumulate(
        self, batches: Sequence[SampleBatch], old: Sequence[Tensor | None], reference: Sequence[Tensor | None]
    ) -> list[dict[str, Tensor]]:
        """Adds the gradients of `batches`, summed over ranks, to the shards; returns each one's sums for metrics.

        Every backward pass reduces and scatters each unit's gradient as soon as it is whole, so a rank never holds more of
        them than a unit or two besides its shards. `old[i]` None: the weights are still those of the round, so old log-probs
        are those of this very pass.
        """
        sums = []
        for index, batch in enumerate(batches):
            new, entropy = response_logprobs(self.model, batch, self.spec.rollout.sampling.temperature)
            before = old[index]
            logprobs = TokenLogprobs(new, new.detach() if before is None else before, reference[index], entropy)
            loss, of_batch = objective(logprobs, batch, self.algorithm)
            (loss * self.loss_scale).backward()
            sums.append(of_batch)
        return sums

    def _update(
        self,
        step: int,
        batches: Sequence[SampleBatch],
        old: Sequence[Tensor | None],
        reference: Sequence[Tensor | None],
    ) -> tuple[float, list[dict[str, Tensor]]]:
        """One optimizer update; returns the gradient norm before clipping, and sums for metrics."""
        while True:
            sums = self.accumulate(batches, old, reference)
            gradients = [parameter.grad for parameter in self.parameters.values()]
            norm = float(gradient_norm(gradients)) / self.loss_scale
            if torch.isfinite(torch.tensor(norm)):
                break
            self.optimizer.zero_grad()
            self._lower_loss_scale(step)
        limit = self.spec.trainer.optimizer.max_grad_norm
        torch._foreach_mul_(gradients, min(1.0, limit / (norm + 1e-6)) / self.loss_scale)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return norm, sums

    def _lower_loss_scale(self, step: int) -> None:
        if self.loss_scale == 1.0:
            raise SpecProblem(
                Reason.LOSS_NOT_FINITE,
                "spec.trainer.optimizer.learningRate",
                f"the gradient of step {step} is not finite; lower the learning rate or use model.dtype BFloat16 or "
                "Float32, then resume",
            )
        self.loss_scale /= 2.0

    def _old_logprobs(self, minibatches: Sequence[Sequence[SampleBatch]]) -> Sequence[Sequence[Tensor | None]]:
        """Of the round's weights, before any update. A single minibatch needs none: see `accumulate`."""
        if len(minibatches) == 1:
            return [[None] * len(minibatches[0])]
        return [self._frozen_logprobs(self.model, batches) for batches in minibatches]

    def _frozen_logprobs(self, model: nn.Module | None, batches: Sequence[SampleBatch]) -> Sequence[Tensor | None]:
        if model is None:
            return [None] * len(batches)
        temperature = self.spec.rollout.sampling.temperature
        return [frozen_logprobs(model, batch, temperature) for batch in batches]


def _reduce(parts: Sequence[Mapping[str, Tensor]]) -> dict[str, float]:
    """Sums (and maxima) over the batches of all ranks. A collective."""
    names = list(parts[0])
    values = torch.stack([torch.stack([part[name] for name in names]) for part in parts])
    totals, maxima = values.sum(0), values.amax(0)
    dist.all_reduce(totals)
    dist.all_reduce(maxima, dist.ReduceOp.MAX)
    return {name: float(maxima[i] if is_maximum(name) else totals[i]) for i, name in enumerate(names)}
