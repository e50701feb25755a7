"""Collects what a step measured until the step is reported."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import structlog

from longboat_runtime.metrics.record import Record, Sink

log = structlog.get_logger()


class Reports:
    """Parts of a step's record come from several parts of the driver at different times. `clock` is Unix time in seconds."""

    def __init__(self, sinks: Sequence[Sink], clock: Callable[[], float]) -> None:
        self.sinks, self._clock = list(sinks), clock
        self._parts: dict[int, dict[str, float]] = {}
        self._last = clock()

    def add(self, step: int, metrics: Mapping[str, float]) -> None:
        """Adds values to the record of `step`."""
        self._parts.setdefault(step, {}).update(metrics)

    def finish(self, step: int, *, timed: bool, devices: int) -> Record:
        """Writes the record of `step`; if `timed`, with the time since the record before and the tokens trained per second of it.

        `perf/throughput` is verl's: tokens of prompts and responses per second and device, `devices` being those of engines and trainer.
        `perf/tokens_per_second` is ours: of the whole job.
        """
        now = self._clock()
        metrics = self._parts.pop(step, {})
        if timed:
            metrics["timing_s/step"] = metrics["perf/time_per_step"] = now - self._last
            rate = metrics.get("perf/total_num_tokens", 0.0) / max(now - self._last, 1e-9)
            metrics["perf/tokens_per_second"], metrics["perf/throughput"] = rate, rate / devices
        self._last = now
        record = Record(step, now, metrics)
        for sink in self.sinks:
            try:
                sink.write(record)
            except OSError as error:  # a full volume; the job is worth more than its metrics
                log.warning("a record could not be written", step=step, sink=type(sink).__name__, error=str(error))
        return record

    def close(self) -> None:
        for sink in self.sinks:
            sink.close()
