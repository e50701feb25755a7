"""Prometheus metrics of the operator's own work. None has a job's name or uid as a label; for jobs see `job_metrics`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from prometheus_client import CollectorRegistry, Counter, Histogram, disable_created_metrics
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

disable_created_metrics()  # type: ignore[no-untyped-call]  # they would double the series of counters, and nothing reads them

REGISTRY = CollectorRegistry()

API_REQUESTS = Counter(
    "longboat_api_requests",
    "Requests to the API server, by HTTP status.",
    ["verb", "resource", "code"],
    registry=REGISTRY,
)
RECONCILE_SECONDS = Histogram(
    "rljob_reconcile_duration_seconds",
    "From taking a job off the queue to having applied its plan.",
    ["result"],
    registry=REGISTRY,
    buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30),
)
ACTIONS = Counter(
    "longboat_plan_actions",
    "Actions of plans, by outcome.",
    ["action", "kind", "outcome"],
    registry=REGISTRY,
)
RESIZES = Counter("rljob_resize", "In-place resizes of pods requested.", ["role", "outcome"], registry=REGISTRY)
RELISTS = Counter("longboat_watch_relists", "Full lists a watch had to start from.", ["kind"], registry=REGISTRY)
REPAIRS = Counter(
    "longboat_watch_repairs", "Deletions that a watch missed and a re-list found.", ["kind"], registry=REGISTRY
)

_GAUGES = {
    "rljob_queue_depth": "Jobs that wait to be planned.",
    "rljob_queue_oldest_seconds": "Longest time that a job has been waiting to be planned.",
    "longboat_jobs": "RLJobs known.",
    "longboat_jobs_of_other_releases": "RLJobs that are left alone because another release serves them.",
    "longboat_leader": "1 if this process writes.",
    "longboat_watch_lag_seconds": "How long a watch has failed to deliver an object that a re-list has shown.",
    "longboat_watch_silence_seconds": "Longest time since one of the watches was last heard.",
}


class ProcessMetrics(Collector):
    """Gauges of this process's state, read when asked."""

    def __init__(
        self, read: Callable[[], Mapping[str, float]], failing: Callable[[], Iterable[tuple[str, str]]]
    ) -> None:
        """`read` gives a value for each of the gauges' names; `failing` gives kind and namespace of what can't be listed."""
        self._read = read
        self._failing = failing

    def collect(self) -> Iterable[Metric]:
        """Yields the gauges as they are now, for Prometheus' client."""
        text = "1 for each kind that can't be listed in a namespace, or in any: nothing is planned there."
        family = GaugeMetricFamily("longboat_watch_failing", text, labels=["kind", "namespace"])
        for labels in self._failing():
            family.add_metric(labels, 1.0)
        yield family
        for name, value in self._read().items():
            yield GaugeMetricFamily(name, _GAUGES[name], value=value)
