"""A batch of samples as each trainer takes it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from longboat_runtime.samples import GeneratedSample
from longboat_runtime.trainer.protocol import TrainRequest, TrainSample


def advantage(position: int) -> float:
    """Returns the advantage of the sample at this place in the step; neither zero nor the same for all."""
    return float(np.sin(1.0 + position))


def request(step: int, samples: Sequence[GeneratedSample]) -> TrainRequest:
    """Makes Longboat's request to train the samples in this step."""
    entries = tuple(TrainSample(sample.id, advantage(i), sample.size) for i, sample in enumerate(samples))
    return TrainRequest(step, 10_000, entries, len(entries))


def padded(samples: Sequence[GeneratedSample]) -> dict[str, Tensor]:
    """Pads prompts on the left and completions on the right, as TRL's trainer does, to the longest of the samples."""
    tensors = {}
    for name, texts in {
        "prompt": [s.prompt_ids for s in samples],
        "completion": [s.token_ids for s in samples],
    }.items():
        longest = max(map(len, texts))
        missing = [(longest - len(text), 0)[:: 1 if name == "prompt" else -1] for text in texts]
        ids = [np.pad(text, pad) for text, pad in zip(texts, missing, strict=True)]
        masks = [np.pad(np.ones(len(text)), pad) for text, pad in zip(texts, missing, strict=True)]
        tensors[f"{name}_ids"] = torch.from_numpy(np.stack(ids)).long()
        tensors[f"{name}_mask"] = torch.from_numpy(np.stack(masks)).long()
    return tensors


def trl_update(
    trainer: Any, optimizer: torch.optim.Optimizer, parts: Sequence[dict[str, Any]]
) -> Callable[[int], None]:
    """Returns a step that makes one update, with GRPOTrainer's loss of each micro-batch."""

    def step(_: int) -> None:
        for part in parts:
            (trainer.compute_loss(trainer.model, part) / len(parts)).backward()
        torch.nn.utils.clip_grad_norm_(trainer.model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return step
