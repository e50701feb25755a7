"""Counters of one vLLM engine, fed by vLLM after each step."""

from __future__ import annotations

import threading
import time
from typing import Any

from vllm.v1.metrics.loggers import PrometheusStatLogger

from longboat_runtime.rollout.load import Load
from longboat_runtime.rollout.step_times import StepClock


class EngineCounters(PrometheusStatLogger):
    """Running and waiting samples, KV use, preemptions, tokens, and what steps take between two calls of `take`.

    Takes the place of vLLM's Prometheus logger (vLLM adds that unless it is given one), which fills dozens of histograms
    at each step: the driver publishes the job's metrics.
    """

    def __init__(self, vllm_config: Any, engine_indexes: list[int] | None = None) -> None:
        del engine_indexes
        self.running = 0
        self.steps = StepClock()
        self._more_steps = False
        self._lock = threading.Lock()
        self._window = Load(vllm_config.parallel_config.tensor_parallel_size)

    def record(
        self, scheduler_stats: Any, iteration_stats: Any, mm_cache_stats: Any = None, engine_idx: int = 0
    ) -> None:
        del mm_cache_stats, engine_idx
        waiting = preemptions = tokens = 0
        kv_usage = 0.0
        if scheduler_stats is not None:
            self.running = scheduler_stats.num_running_reqs
            kv_usage, waiting = scheduler_stats.kv_cache_usage, scheduler_stats.num_waiting_reqs
            self._more_steps = self.running + waiting > 0
        step_times = {}
        if iteration_stats is not None:
            preemptions, tokens = iteration_stats.num_preempted_reqs, iteration_stats.num_generation_tokens
            # A step gives a sequence at most one token.
            step_times = self.steps.step(time.perf_counter(), tokens, more=self._more_steps)
        self._add(
            preemptions=preemptions,
            generated_tokens=tokens,
            running=self.running,
            waiting=waiting,
            kv_usage=kv_usage,
            step_times=step_times,
        )

    def interrupted(self, sequences: int) -> None:
        """Counts running sequences that have to be computed again because of a publication."""
        self._add(interrupted=sequences)

    def take(self) -> Load:
        """Returns what has happened since the last call, so only one caller may use it."""
        with self._lock:
            taken, self._window = self._window, Load(self._window.tensor_parallel)
        return taken

    def _add(self, **measured: Any) -> None:
        with self._lock:
            self._window += Load(self._window.tensor_parallel, **measured)

    def log_engine_initialized(self) -> None:
        """Logs nothing."""

    def record_sleep_state(self, sleep: int = 0, level: int = 0) -> None:
        """Records nothing: our engines don't sleep."""

    def record_admission_rejection(self, reason: str) -> None:
        """Records nothing: vLLM turns no request away, since we set no limit for its queue."""
