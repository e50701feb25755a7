"""`make chaos`: random faults, by a seed, on real jobs of a real Kubernetes; nothing may be lost, doubled or stuck."""

import argparse
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from bench.chaos import summary
from bench.record import Recorder, raw_file
from e2e import episodes_job, small_job, volumes
from e2e import site as sites
from e2e.chaos import lives
from e2e.chaos.run import Run, policies
from e2e.cluster import cluster as clusters
from e2e.cluster.cluster import Cluster
from e2e.cluster.errors import ClusterError
from e2e.host_runtime import REPOSITORY
from longboat_crds.rounds import RoundPolicyName

NAMESPACE = "chaos"
CLAIMS = 24
DIAGNOSIS = REPOSITORY / "build" / "chaos"


def main() -> int:
    """Runs jobs and faults; returns the exit status: 0 if all jobs recovered from every fault and every audit is clean.

    It is 130 if the run is interrupted, else 1.
    """
    options = _options()
    signal.signal(signal.SIGTERM, _interrupt)
    diagnosis = DIAGNOSIS / time.strftime(f"%Y%m%d-%H%M%S-seed{options.seed}")
    try:
        with _cluster(options.cluster) as cluster:
            site = sites.prepare(cluster, NAMESPACE)
            volumes.provide(cluster, CLAIMS)
            (episodes_job if options.episodes else small_job).write_data(site.data)
            recorder = Recorder(
                raw_file("chaos"),
                seed=options.seed,
                minutes=options.minutes,
                policies=options.policy,
                jobs=options.jobs,
                episodes=options.episodes,
            )
            run = Run(
                site,
                options.seed,
                60 * options.minutes,
                options.policy,
                options.jobs,
                options.patience,
                options.episodes,
                recorder,
                diagnosis,
            )
            run.go()
    except ClusterError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    summary.write(raw_file("chaos"))
    outcomes = Counter(run.outcomes)
    dirty = [audit["job"] for audit in run.audits if not lives.clean(audit)]
    print(f"\n{dict(outcomes)}; audits: {len(run.audits)}, of which not clean: {', '.join(dirty) or 'none'}")
    return 0 if set(outcomes) <= {"recovered"} and not dirty else 1


@contextmanager
def _cluster(name: str | None) -> Iterator[Cluster]:
    """Yields the running cluster of that name, or one of two nodes for this run. Raises ClusterError if that one isn't up."""
    if name:
        cluster = Cluster.find(name)
        if cluster is None:
            raise ClusterError(f"cluster {name} is not up: run `python -m e2e.cluster up --name {name} --nodes 2`")
        yield cluster
        return
    with clusters.own("chaos", nodes=2) as made:
        yield made


def _interrupt(*_: object) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the cluster is taken down first
    raise KeyboardInterrupt


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make chaos", description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="the faults and their order follow from it (default: 1)")
    parser.add_argument("--minutes", type=float, default=10, help="how long faults come (default: 10)")
    parser.add_argument("--policy", type=_policies, default="all", help="a round policy, or all in turn (default: all)")
    parser.add_argument("--jobs", type=int, default=2, help="jobs at a time (default: 2)")
    parser.add_argument(
        "--patience",
        type=float,
        default=300,
        help="seconds after which a job that makes no step is stuck (default: 300)",
    )
    parser.add_argument("--episodes", action="store_true", help="jobs play episodes in environment pods")
    parser.add_argument("--cluster", metavar="NAME", help="use this running cluster, and leave it running")
    options = parser.parse_args()
    if options.episodes and RoundPolicyName.CONTINUE_UNFINISHED in options.policy:
        if len(options.policy) == 1:
            parser.error("--episodes: ContinueUnfinished has no episodes; write another --policy")
        options.policy.remove(RoundPolicyName.CONTINUE_UNFINISHED)
    return options


def _policies(word: str) -> list[RoundPolicyName]:
    try:
        return policies(word)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


if __name__ == "__main__":
    sys.exit(main())
