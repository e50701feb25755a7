"""Engines that note what each of their steps took."""

from __future__ import annotations

import time
from typing import Any

from longboat_runtime.rollout.actor import EngineActor

# What a step had: sequences that got a token, prompt tokens computed in it, wall and CPU seconds of the engine's thread.
Step = tuple[int, int, float, float]


def note_steps(engine: Any) -> list[Step]:
    """Makes the engine, one that runs in this process, add each further step to the list that is returned."""
    steps: list[Step] = []
    batch = [0, 0]
    counters, step = engine._counters, engine._step
    record = counters.record

    def recording(scheduler_stats: Any, iteration_stats: Any, *others: Any, **named: Any) -> None:
        if iteration_stats is not None:
            batch[:] = iteration_stats.num_generation_tokens, iteration_stats.num_prompt_tokens
        record(scheduler_stats, iteration_stats, *others, **named)

    def timed() -> Any:
        batch[:] = 0, 0
        wall, cpu = time.perf_counter(), time.thread_time()
        output = step()
        steps.append((*batch, time.perf_counter() - wall, time.thread_time() - cpu))
        return output

    counters.record, engine._step = recording, timed
    return steps


class TimedActor(EngineActor):
    """An engine in a job."""

    async def start(self) -> None:
        await super().start()
        self._steps = note_steps(self._started)

    async def steps(self) -> list[Step]:
        """Returns the steps since the last call."""
        steps = self._steps[:]
        del self._steps[: len(steps)]
        return steps
