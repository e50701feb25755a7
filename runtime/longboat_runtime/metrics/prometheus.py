"""Records as Prometheus gauges, served over HTTP."""

from __future__ import annotations

import re

from prometheus_client import CollectorRegistry, Gauge, start_http_server

from longboat_runtime.metrics.record import Record

PREFIX = "longboat_"


def gauge_name(metric: str) -> str:
    """Turns a metric's name into that of its gauge: `actor/pg_loss` into `longboat_actor_pg_loss`.

    Whatever isn't an ASCII letter, a digit or an underscore becomes an underscore.
    """
    return PREFIX + re.sub(r"[^a-zA-Z0-9_]", "_", metric)


class Prometheus:
    """The last value of each metric as a gauge, without labels: the scrape config knows the job. Port 0 takes a free one."""

    def __init__(self, port: int) -> None:
        self._registry = CollectorRegistry()
        self._gauges: dict[str, Gauge] = {}
        self._server, self._thread = start_http_server(port, registry=self._registry)
        self.port: int = self._server.server_port

    def write(self, record: Record) -> None:
        self._set("training/global_step", "optimizer steps committed", record.step)
        for name, value in record.metrics.items():
            self._set(name, f"{name} of the last step", value)

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _set(self, metric: str, help_text: str, value: float) -> None:
        name = gauge_name(metric)
        if name not in self._gauges:
            self._gauges[name] = Gauge(name, help_text, registry=self._registry)
        self._gauges[name].set(value)
