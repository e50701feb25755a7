"""Engines whose steps take as long as those of a device, whatever they work on; their CPUs are free meanwhile.

A GPU takes about as long to decode for a dozen sequences as for one. Two CPUs don't: they have everything else to do as well (messages,
grading, the driver), and each sequence costs them arithmetic. Here a step of vLLM's model does its work, and then waits.
"""

from __future__ import annotations

import time
from contextlib import AbstractContextManager
from typing import Any
from unittest.mock import patch

from longboat_runtime.rollout import ray_cluster
from longboat_runtime.rollout.actor import EngineActor

# A model of 7 to 14 billion parameters takes about that on a current GPU.
STEP_SECONDS = 0.010


class PacedActor(EngineActor):
    """Its engine runs in its process, as all do on CPU, and its steps take at least `step_seconds`."""

    step_seconds = STEP_SECONDS

    async def start(self) -> None:
        await super().start()
        executor = self._started._vllm.engine_core.engine_core.model_executor  # type: ignore[attr-defined]
        execute = executor.execute_model

        def paced(*arguments: Any, **options: Any) -> Any:
            end = time.monotonic() + self.step_seconds
            result = execute(*arguments, **options)
            time.sleep(max(0.0, end - time.monotonic()))
            return result

        executor.execute_model = paced


def engines_of(actor: type[EngineActor]) -> AbstractContextManager[object]:
    """Makes engines that start within the block run in actors of this class."""
    return patch.object(ray_cluster, "EngineActor", actor)
