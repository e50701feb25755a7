"""The optimizer updates of one step on this rank."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn

from longboat_crds.algorithm import resolve_loss
from longboat_crds.job import RLJobSpec
from longboat_crds.rounds import OFF_POLICY
from longboat_runtime.trainer.aggregation import streamed_factor
from longboat_runtime.trainer.batch import SampleBatch
from longboat_runtime.trainer.errors import NotStreamed
from longboat_runtime.trainer.forward import frozen_logprobs, response_logprobs
from longboat_runtime.trainer.loss_scale import LossScale
from longboat_runtime.trainer.machine import MACHINE
from longboat_runtime.trainer.metrics import LOSSES, is_maximum, step_metrics
from longboat_runtime.trainer.objective import TokenLogprobs, metric_sums, objective
from longboat_runtime.trainer.optimizer import build_optimizer, gradient_norm, learning_rate, set_learning_rate
from longboat_runtime.trainer.platform import Platform
from longboat_runtime.trainer.step_plan import StepPlan


@dataclass(frozen=True, slots=True)
class Update:
    """One optimizer update that was made: the gradient's norm before clipping, and each batch's sums for metrics."""

    norm: float
    sums: list[dict[str, Tensor]]


@dataclass(frozen=True, slots=True)
class Streamed:
    """What is known of the `chunks` of a step whose gradients are in the shards.

    Their `samples` in the loss have so many response `tokens`; `sums` are each batch's sums for metrics. Weights of all chunks were
    computed with the `mean_tokens` of the first, so that the gradient has about the size of the step's.
    """

    step: int
    mean_tokens: float
    chunks: int = 0
    samples: int = 0
    tokens: int = 0
    sums: tuple[dict[str, Tensor], ...] = ()


class Updates:
    """The model, its optimizer, and the way from gradients to updates. `run`, `stream` and `accumulate` are collectives.

    `streamed` are the chunks that the next update may be made of.
    """

    def __init__(
        self, spec: RLJobSpec, model: nn.Module, reference: nn.Module | None, platform: Platform = MACHINE
    ) -> None:
        self.spec, self.model, self.reference, self.platform = spec, model, reference, platform
        self.algorithm = resolve_loss(spec.algorithm, off_policy=spec.rounds.policy in OFF_POLICY)
        self.parameters = dict(model.named_parameters())
        self.optimizer = build_optimizer(spec.trainer.optimizer, self.parameters)
        self.loss_scale = LossScale.from_dtype(spec.model.dtype)
        self.streamed: Streamed | None = None

    def discard(self) -> None:
        """Drops the gradients, and with them the chunks."""
        self.streamed = None
        self.optimizer.zero_grad()

    def stream(self, step: int, plan: StepPlan, batches: Sequence[SampleBatch]) -> float:
        """Adds a chunk to the chunks of `step`; returns the seconds after the starting model's log-probs.

        If it fails half-way there are no chunks any more.
        """
        mean_tokens = plan.tokens / plan.samples if plan.samples else float(self.spec.rollout.sampling.max_tokens)
        before, self.streamed = self.streamed or Streamed(step, mean_tokens), None
        reference = self._current_logprobs(self.reference, [batches])[0] if self.reference else None
        started = self.platform.time_done()
        sums = self.accumulate(batches, None, reference)
        seconds = self.platform.time_done() - started
        self.streamed = Streamed(
            step,
            before.mean_tokens,
            before.chunks + 1,
            before.samples + plan.samples,
            before.tokens + plan.tokens,
            (*before.sums, *sums),
        )
        return seconds

    def run(
        self, step: int, steps: int, plan: StepPlan, minibatches: Sequence[Sequence[SampleBatch]]
    ) -> tuple[dict[str, float], int, float]:
        """Makes one update for each minibatch of step `step` of `steps` whose gradient is finite.

        If there are chunks, their gradient is part of the only one. Returns metrics, how many minibatches were skipped, and the seconds
        of the updates. Every rank must pass the same number of batches in each minibatch. All ranks skip the same minibatches: the norm
        that decides is that of the whole gradient, the same number on all ranks.
        """
        streamed, self.streamed = self.streamed, None
        factor = 1.0
        if streamed:
            factor = streamed_factor(
                self.algorithm.aggregation,
                streamed.samples + plan.samples,
                streamed.tokens + plan.tokens,
                streamed.mean_tokens,
            )
        started = time.monotonic()
        # With the round's weights, before any update. A single minibatch needs none: see `accumulate`.
        old = self._current_logprobs(self.model, minibatches) if len(minibatches) > 1 else None
        reference = self._current_logprobs(self.reference, minibatches) if self.reference else None
        prepared = self.platform.time_done()
        rate = learning_rate(self.spec.trainer.optimizer, step, steps)
        set_learning_rate(self.optimizer, rate)
        attempted = [
            self._update(batches, old[i] if old else None, reference[i] if reference else None, streamed, factor)
            for i, batches in enumerate(minibatches)
        ]
        made = [update for update in attempted if update is not None]
        skipped = len(attempted) - len(made)
        metrics = self._metrics(made) | {
            "actor/lr": rate,
            **({"actor/loss_scale": self.loss_scale.value} if self.loss_scale.adapts else {}),
            "training/skipped_minibatches": float(skipped),
            "timing_s/old_log_prob": prepared - started,
        }
        return metrics, skipped, time.monotonic() - prepared

    def accumulate(
        self, batches: Sequence[SampleBatch], old: Sequence[Tensor] | None, reference: Sequence[Tensor] | None
    ) -> list[dict[str, Tensor]]:
        """Adds the gradients of `batches`, summed over ranks, to the shards; returns each batch's sums for metrics.

        Every backward pass reduces and scatters each unit's gradient as soon as it is complete, so a rank never holds the gradients
        of more than a unit or two in addition to its shards. Without `old` the weights are still those of the round, so the old
        log-probs are those of the same pass.
        """
        sums = []
        for index, batch in enumerate(batches):
            new, entropy = response_logprobs(
                self.model,
                batch,
                self.spec.rollout.sampling.temperature,
                entropies=self.algorithm.entropy_coefficient > 0,
                platform=self.platform,
            )
            before = old[index] if old else new.detach()
            logprobs = TokenLogprobs(new, before, reference[index] if reference else None, entropy)
            loss = objective(logprobs, batch, self.algorithm)
            sums.append(metric_sums(loss, logprobs, batch, self.algorithm))
            (loss.total * self.loss_scale.value).backward()
        return sums

    def _update(
        self,
        batches: Sequence[SampleBatch],
        old: Sequence[Tensor] | None,
        reference: Sequence[Tensor] | None,
        streamed: Streamed | None,
        factor: float,
    ) -> Update | None:
        """Makes one optimizer update of the gradient times `factor`.

        Returns None, with the weights unchanged, if it isn't finite at any scale. In Float16 raises NotStreamed if it isn't finite at the
        one scale at which there are chunks.
        """
        before = self.loss_scale
        for scale in before.attempts():
            self.loss_scale = scale
            sums = [*(streamed.sums if streamed else ()), *self.accumulate(batches, old, reference)]
            gradients = [_gradient(parameter) for parameter in self.parameters.values()]
            norm = self.platform.read(gradient_norm(gradients)) * factor / scale.value
            if math.isfinite(norm):
                limit = self.spec.trainer.optimizer.max_grad_norm
                torch._foreach_mul_(gradients, min(1.0, limit / (norm + 1e-6)) * factor / scale.value)
                self.optimizer.step()
                self.optimizer.zero_grad()
                self.loss_scale = scale.after_update()
                return Update(norm, [part | {name: part[name] * factor for name in LOSSES} for part in sums])
            self.optimizer.zero_grad()
            if streamed and scale.adapts:
                raise NotStreamed(f"the gradient that was streamed is not finite at the loss scale {scale.value:g}")
        self.loss_scale = before.after_skip()
        return None

    def _metrics(self, made: Sequence[Update]) -> dict[str, float]:
        """Returns the metrics of the updates that were made; empty if none was made. A collective."""
        if not made:
            return {}
        sums = _reduce([sums for update in made for sums in update.sums], self.platform)
        metrics = step_metrics(sums, len(made), self.algorithm)
        return metrics | {"actor/grad_norm": sum(update.norm for update in made) / len(made)}

    def _current_logprobs(self, model: nn.Module, minibatches: Sequence[Sequence[SampleBatch]]) -> list[list[Tensor]]:
        """Computes the log-probs of every batch by the model with its current weights."""
        temperature = self.spec.rollout.sampling.temperature
        return [
            [frozen_logprobs(model, batch, temperature, platform=self.platform) for batch in batches]
            for batches in minibatches
        ]


def _gradient(parameter: nn.Parameter) -> Tensor:
    """Returns the gradient of a weight, first set to zeros if it has none (experts), so that Adam's moments decay as for any other."""
    if parameter.grad is None:
        parameter.grad = torch.zeros_like(parameter)
    return parameter.grad


def _reduce(parts: Sequence[Mapping[str, Tensor]], platform: Platform) -> dict[str, float]:
    """Computes the sums (and maxima) over the batches of all ranks. A collective."""
    names = list(parts[0])
    values = torch.stack([torch.stack([part[name] for name in names]) for part in parts])
    totals, maxima = values.sum(0), values.amax(0)
    dist.all_reduce(totals)
    dist.all_reduce(maxima, dist.ReduceOp.MAX)
    values = zip(names, platform.read(totals), platform.read(maxima), strict=True)
    return {name: maximum if is_maximum(name) else total for name, total, maximum in values}
