"""Counters of one vLLM engine, fed by vLLM after each step."""

from __future__ import annotations

import time
from typing import Any

from vllm.v1.metrics.loggers import PrometheusStatLogger

from longboat_runtime.rollout.step_times import StepClock


class EngineCounters(PrometheusStatLogger):
    """Running samples, KV use, preemptions, tokens, and what steps take.

    Takes the place of vLLM's Prometheus logger (vLLM adds that unless it is given one), which fills dozens of histograms
    at each step: the driver publishes the job's metrics.
    """

    def __init__(self, vllm_config: Any, engine_indexes: list[int] | None = None) -> None:
        del vllm_config, engine_indexes
        self.running = 0
        self.kv_usage = 0.0
        self.preemptions = 0
        self.generated_tokens = 0
        self.steps = StepClock()
        self._more = False

    def record(
        self, scheduler_stats: Any, iteration_stats: Any, mm_cache_stats: Any = None, engine_idx: int = 0
    ) -> None:
        del mm_cache_stats, engine_idx
        if scheduler_stats is not None:
            self.running = scheduler_stats.num_running_reqs
            self.kv_usage = scheduler_stats.kv_cache_usage
            self._more = self.running + scheduler_stats.num_waiting_reqs > 0
        if iteration_stats is not None:
            self.preemptions += iteration_stats.num_preempted_reqs
            self.generated_tokens += iteration_stats.num_generation_tokens
            # Each sequence of a step gets one token.
            self.steps.step(time.perf_counter(), iteration_stats.num_generation_tokens, more=self._more)

    def log_engine_initialized(self) -> None:
        """Nothing to log."""

    def record_sleep_state(self, sleep: int = 0, level: int = 0) -> None:
        """Our engines don't sleep."""

    def record_admission_rejection(self, reason: str) -> None:
        """Our engines take every request."""
