"""vLLM's schedulers, which count preemptions for want of KV cache only: what a publication does to running requests isn't counted."""

from __future__ import annotations

from typing import Any

from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.engine import EngineCoreEventType


class _CountsPreemptions:
    """Part of a scheduler.

    New weights need new keys and values, so a publication has all running requests computed again from their tokens. vLLM does that by
    preempting them, and tells its counters so.
    """

    running: list[Any]

    def reset_prefix_cache(self, *arguments: Any, **named: Any) -> bool:
        interrupted = [*self.running]
        done: bool = super().reset_prefix_cache(*arguments, **named)  # type: ignore[misc]
        for request in interrupted:
            if request.events and request.events[-1].type is EngineCoreEventType.PREEMPTED:
                request.events.pop()
        return done


class CountingScheduler(_CountsPreemptions, Scheduler):
    """Steps one after another, as on CPUs."""


class CountingAsyncScheduler(_CountsPreemptions, AsyncScheduler):
    """Schedules the next step while one is computed, as on accelerators."""
