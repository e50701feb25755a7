"""CPU of the operator's plans, a thousand jobs that change their demand, a long queue, and demand to grant on a real API server.

It takes a quarter of an hour, as root.
"""

from __future__ import annotations

import argparse
import gc
import logging
from pathlib import Path

import structlog

from bench.operator.latency import latency
from bench.operator.many_jobs import many_jobs
from bench.operator.plans import plan_costs
from bench.operator.queued import queued
from bench.record import Recorder
from longboat_operator.cli import COLLECTED_AFTER

JOBS = 1000
PERIOD_SECONDS = 20.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `make bench NAME=operator`."""
    parser.add_argument("--jobs", type=int, default=JOBS, help="jobs that change their demand, in memory")
    parser.add_argument("--period", type=float, default=PERIOD_SECONDS, help="seconds between changes of one job")
    parser.add_argument("--seconds", type=float, default=60.0, help="how long they do")
    parser.add_argument("--real-jobs", type=int, default=10, help="jobs on the real API server")
    parser.add_argument("--demands", type=int, default=200, help="demands on the real API server, two a second")
    parser.add_argument(
        "--keys", type=int, default=10_000, help="keys queued at once, for this operator and the first release's"
    )
    parser.add_argument("--queued-jobs", type=int, default=500, help="how many of them each of the two plans")
    parser.add_argument("--cluster", help="a test cluster that is up; default: one of its own")
    parser.add_argument("--repeats", type=int, default=5, help="of a plan's cost")


def run(arguments: argparse.Namespace, path: Path) -> None:
    """Runs one part after the other. Appends to `path`."""
    gc.set_threshold(*COLLECTED_AFTER)  # as the operator's process does
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    recorder = Recorder(path, **dict(vars(arguments).items()))
    for kind, values in (
        ("plans", lambda: plan_costs(arguments.repeats)),
        ("many_jobs", lambda: many_jobs(arguments.jobs, arguments.period, arguments.seconds)),
        ("queued", lambda: queued(arguments.keys, arguments.queued_jobs)),
        ("latency", lambda: latency(arguments.real_jobs, arguments.demands, 0.5, arguments.cluster)),
    ):
        results = values()
        recorder.write(kind, **results)
        print(kind, {name: value for name, value in results.items() if name not in {"seconds", "slices"}}, flush=True)
    recorder.close()
