"""Grading as a service: learned timeouts, the same CPUs in fixed halves, moving and in one pool, and how long a move of CPUs takes.

The part `timeouts` takes some 40 minutes. `cpus` and `moves` train real jobs on a test cluster, which takes root: about 40 minutes and 12. Each
wants the machine for itself.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.record import Recorder
from bench.rewards import cpus, moves, timeouts
from bench.rewards.swaps import ARMS, Trace
from e2e import site as sites
from e2e import small_job
from e2e.cluster import Cluster
from e2e.cluster import cluster as clusters

PARTS = ("timeouts", "cpus", "moves")
NAMESPACE = "bench-rewards"
# Millicores of all graders, of the two CPUs of the machine that results are recorded on; the rest of the job and of the cluster has the others.
TOTAL, MOVES_TOTAL = 1000, 1200
# CPU seconds that the grades of a round take: 30 s and more with all CPUs; where only moves are timed a round is short.
WORK, MOVES_WORK = 32.0, 4.0
# Pods of each pool where moves are timed, and rounds until they begin.
REPLICAS, FIRST_ROUNDS = 2, 3
MOVES_SEED = 100


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `make bench NAME=rewards`."""
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--cluster", help="a test cluster that is up; default: one of its own")
    parser.add_argument("--blocks", type=int, default=2, help="cpus: blocks of each arm, each a job and a seed")
    parser.add_argument("--swap", type=int, default=3, help="cpus: rounds until the load swaps, twice in a block")
    parser.add_argument("--moves", type=int, default=110, help="moves: rounds, each of which makes CPUs move once")
    timeouts.add_arguments(parser)


def run(arguments: argparse.Namespace, path: Path) -> None:
    """Runs one part after the other. Appends to `path`."""
    recorder = Recorder(path, **vars(arguments))
    if "timeouts" in arguments.parts:
        timeouts.run(arguments, recorder)
    if {"cpus", "moves"} & {*arguments.parts}:
        with _site(arguments.cluster) as site:
            if "cpus" in arguments.parts:
                _cpus(arguments, site, recorder)
            if "moves" in arguments.parts:
                trace = Trace(MOVES_SEED, FIRST_ROUNDS + arguments.moves, 1, MOVES_WORK)
                values = moves.measured(site, trace, MOVES_TOTAL, REPLICAS)
                recorder.write("moves", total=MOVES_TOTAL, work=MOVES_WORK, **values)
                print({**values, "moves": len(values["moves"])}, flush=True)
    recorder.close()


def _cpus(arguments: argparse.Namespace, site: sites.Site, recorder: Recorder) -> None:
    """Measures and records blocks of the arms, in an order that is reversed from seed to seed."""
    for seed in range(arguments.blocks):
        trace = Trace(seed, 1 + 2 * arguments.swap, arguments.swap, WORK)
        for arm in ARMS if seed % 2 == 0 else tuple(reversed(ARMS)):
            values = cpus.block(site, arm, trace, TOTAL)
            recorder.write("block", total=TOTAL, work=WORK, **values)
            print(arm, seed, [round_["seconds"] for round_ in values["rounds"]], values["void"] or "", flush=True)


@contextmanager
def _site(running: str | None) -> Iterator[sites.Site]:
    """Yields Longboat, with the tiny model, on the cluster named `running`, or on one of its own if that is None.

    Raises RuntimeError if the named one isn't up.
    """
    if running is not None:
        cluster = Cluster.find(running)
        if cluster is None:
            raise RuntimeError(f"--cluster {running}: it is not up")
        yield _prepared(cluster)
        return
    with clusters.own("bench-rewards", nodes=2) as made:
        yield _prepared(made)


def _prepared(cluster: Cluster) -> sites.Site:
    site = sites.prepare(cluster, NAMESPACE)
    small_job.write_data(site.data)
    return site
