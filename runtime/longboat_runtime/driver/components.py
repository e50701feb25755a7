"""The components of the runtime that a driver works with."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from longboat_runtime.checkpoint.digests import Digests
from longboat_runtime.checkpoint.protocol import Checkpoints
from longboat_runtime.data.protocol import PromptSource
from longboat_runtime.episodes.protocol import EpisodePods
from longboat_runtime.reward.protocol import RewardScheduler
from longboat_runtime.rollout.protocol import RolloutFleet, SampleFleet
from longboat_runtime.samples import Row
from longboat_runtime.store.protocol import SampleStore
from longboat_runtime.trainer.protocol import TrainerGroup

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


async def _at_once() -> None:
    return


@dataclass(frozen=True, slots=True)
class Components:
    """Everything except the driver itself.

    `evaluation` are the held-out rows, empty if there are none. `ready` waits until engines and graders can work; the trainer
    loads its model meanwhile. `tokenizer` is the model's, None where there is none; `digests` are those of model, tokenizer and rows.
    `episodes` are there if the job has environments: they make its samples then, and engines draw turns.
    """

    store: SampleStore
    fleet: RolloutFleet
    rewards: RewardScheduler
    trainer: TrainerGroup
    source: PromptSource
    checkpoints: Checkpoints
    evaluation: tuple[Row, ...] = ()
    tokenizer: PreTrainedTokenizerBase | None = None
    ready: Callable[[], Coroutine[Any, Any, None]] = _at_once
    digests: Digests = field(default_factory=dict)
    episodes: EpisodePods | None = None

    @property
    def samples(self) -> SampleFleet:
        """The fleet that makes samples."""
        return self.fleet if self.episodes is None else self.episodes
