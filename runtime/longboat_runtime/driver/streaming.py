"""Decides whether a job's finished groups are trained while their round is open. Pure."""

from __future__ import annotations

from longboat_crds.algorithm import resolve
from longboat_crds.job import RLJobSpec
from longboat_crds.trainer import StreamMode
from longboat_runtime.reward.combine import unscored
from longboat_runtime.rounds.policy import Policy
from longboat_runtime.rounds.streaming import Streaming
from longboat_runtime.trainer.advantages import look_beyond_group


def streams(spec: RLJobSpec, device: str) -> bool:
    """Whether the job streams (`trainer.stream`) if trainers have devices of this type (`cuda`, `cpu`).

    No job does with several minibatches, or with advantages that look beyond the group. Auto streams on GPUs, unless kernels are
    deterministic.
    """
    trainer = spec.trainer
    if trainer.minibatches > 1 or look_beyond_group(resolve(spec.algorithm)):
        return False
    if trainer.stream is StreamMode.AUTO:
        return device != "cpu" and not trainer.is_deterministic(device)
    return trainer.stream is StreamMode.ALWAYS


def with_chunks(policy: Policy, spec: RLJobSpec) -> Policy:
    """Returns a policy that decides as `policy` does, and streams: in chunks that can fill a bin of every rank."""
    return Streaming(policy, spec.trainer.ranks * spec.trainer.max_tokens_per_bin, unscored(spec.rewards))
