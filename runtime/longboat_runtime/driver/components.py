"""The components of the runtime that a driver works with."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from longboat_runtime.interfaces import (
    Checkpoints,
    PromptSource,
    RewardScheduler,
    RolloutFleet,
    SampleStore,
    TrainerGroup,
)
from longboat_runtime.samples import Row


async def _at_once() -> None:
    return


@dataclass(frozen=True, slots=True)
class Components:
    """Everything except the driver itself.

    `evaluation` are the held-out rows, empty if there are none. `ready` waits until engines and graders can work; the trainer
    loads its model meanwhile.
    """

    store: SampleStore
    fleet: RolloutFleet
    rewards: RewardScheduler
    trainer: TrainerGroup
    source: PromptSource
    checkpoints: Checkpoints
    evaluation: tuple[Row, ...] = ()
    ready: Callable[[], Coroutine[Any, Any, None]] = _at_once
