"""Metrics of the jobs themselves, read from the cache at each scrape: a deleted job's series end with it. No uid labels."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from longboat_operator.model import JobKey, Object
from longboat_operator.watch.cache import Cache

_JOB = ("namespace", "name")


class _Families:
    """The metric families of one scrape."""

    def __init__(self) -> None:
        self.info = GaugeMetricFamily("rljob_info", "1 for each job.", labels=(*_JOB, "runtime"))
        self.phase = GaugeMetricFamily("rljob_phase", "1 for the phase the job is in.", labels=(*_JOB, "phase"))
        self.step = GaugeMetricFamily("rljob_step", "Optimizer steps committed.", labels=_JOB)
        self.pods = GaugeMetricFamily("rljob_role_pods", "Pods of a role.", labels=(*_JOB, "role", "state"))
        self.restarts = CounterMetricFamily(
            "rljob_restarts", "Container restarts and pod replacements that count.", labels=(*_JOB, "role")
        )
        self.checkpoint = GaugeMetricFamily("rljob_checkpoint_step", "Step of the newest checkpoint.", labels=_JOB)
        self.age = GaugeMetricFamily("rljob_checkpoint_age_seconds", "Age of the newest checkpoint.", labels=_JOB)

    def add(self, key: JobKey, job: Object, now: float) -> None:
        """Adds one job's samples; `now` in seconds since the epoch."""
        names = [key.namespace, key.name]
        status: Mapping[str, Any] = job.get("status") or {}
        self.info.add_metric([*names, job.get("spec", {}).get("runtimeRef", {}).get("name", "")], 1)
        self.phase.add_metric([*names, status.get("phase") or "Pending"], 1)
        if training := status.get("training"):
            self.step.add_metric(names, training.get("step", 0))
        for role, counts in (status.get("roles") or {}).items():
            self.pods.add_metric([*names, role, "desired"], counts.get("desired", 0))
            self.pods.add_metric([*names, role, "ready"], counts.get("ready", 0))
            self.restarts.add_metric([*names, role], counts.get("restarts", 0))
        if checkpoint := status.get("checkpoint"):
            self.checkpoint.add_metric(names, checkpoint.get("step", 0))
            if checkpoint.get("time"):
                made = datetime.fromisoformat(checkpoint["time"]).timestamp()
                self.age.add_metric(names, max(0.0, now - made))


class JobMetrics(Collector):
    """One set of series for each RLJob in the cache."""

    def __init__(self, cache: Cache) -> None:
        self._cache = cache

    def collect(self) -> Iterable[Metric]:
        """Returns the metrics of all jobs in the cache, for Prometheus' client."""
        families = _Families()
        for key, job in self._cache.jobs():
            families.add(key, job, time.time())
        return tuple(vars(families).values())
