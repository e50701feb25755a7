"""`longboat-operator run`: options, then the shell."""

from __future__ import annotations

import argparse
import asyncio
import gc
import math
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import structlog

from longboat_crds.load import ApiError
from longboat_operator import logs
from longboat_operator.kube.config import ConfigurationError, load_configuration, own_namespace
from longboat_operator.lease import DURATION_SECONDS, LeadershipLostError
from longboat_operator.model import DNS_PEERS, REQUEST_TIMEOUT_SECONDS, Object
from longboat_operator.observe import observe
from longboat_operator.planner import plan
from longboat_operator.pods.network import read_dns_peers
from longboat_operator.shell import LeaseOptions, Options, Shell

# Thresholds of the garbage collector (`gc.set_threshold`), far above its defaults. The snapshots and plans that an operator makes and
# drops have no cycles, and with a thousand jobs a full collection takes half a second.
COLLECTED_AFTER = (20_000, 20, 20)

# By how much the Lease outlasts a request: less a second, it is how long after a renewal the leader may still begin a write.
LEASE_BEYOND_REQUEST_SECONDS = DURATION_SECONDS - REQUEST_TIMEOUT_SECONDS

log = structlog.get_logger(__name__)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the operator and returns the exit status.

    It is 0 after a signal, 2 if the API server's configuration or the lease's duration can't be used, 1 after another error.

    Raises:
        SystemExit: the arguments can't be parsed (its status is 2 too), or ask for help.
    """
    parsed = _parser().parse_args(arguments)
    logs.configure(parsed.log_format)
    gc.set_threshold(*COLLECTED_AFTER)
    try:
        asyncio.run(_run(parsed.kubeconfig, _options(parsed)))
    except ConfigurationError as error:
        log.error("can't start", error=str(error))
        return 2
    except LeadershipLostError as error:
        log.error("ending", error=str(error))
        return 1
    except Exception:
        log.exception("ending on an unrecoverable error")
        return 1
    return 0


async def _run(kubeconfig: Path | None, options: Options) -> None:
    configuration = await load_configuration(kubeconfig)
    look = partial(
        observe,
        dns_peers=options.dns_peers,
        release=options.release,
        request_seconds=options.request_timeout_seconds,
        may_delete=options.may_delete,
    )
    await Shell(configuration, options, look, plan).run()


def _options(parsed: argparse.Namespace) -> Options:
    namespaces = tuple(dict.fromkeys(parsed.namespace))
    lease_namespace = parsed.lease_namespace or own_namespace() or (namespaces[0] if namespaces else "default")
    duration = parsed.lease_duration
    if duration is None:
        duration = parsed.request_timeout + LEASE_BEYOND_REQUEST_SECONDS
    return Options(
        namespaces=namespaces,
        lease=LeaseOptions(lease_namespace, parsed.lease_name, duration) if parsed.leader_election else None,
        release=f"{lease_namespace}/{parsed.lease_name}",
        adopt=parsed.adopt,
        health_port=parsed.health_port,
        metrics_port=parsed.metrics_port,
        requests_in_flight=parsed.requests_in_flight,
        request_timeout_seconds=parsed.request_timeout,
        dns_peers=parsed.dns_peers,
        may_delete=parsed.may_delete,
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="longboat-operator", description="Runs RLJobs on Kubernetes.")
    run = parser.add_subparsers(required=True, metavar="COMMAND").add_parser("run", help="run the operator")
    run.add_argument(
        "--kubeconfig", type=Path, metavar="FILE", help="default: the pod's service account, else ~/.kube/config"
    )
    run.add_argument(
        "--namespace",
        action="append",
        default=[],
        metavar="NS",
        help="serve this namespace; may be repeated; default: the whole cluster",
    )
    run.add_argument(
        "--leader-election",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="compete for a Lease, so that several replicas can run",
    )
    run.add_argument(
        "--lease-namespace", metavar="NS", help="default: the pod's own namespace, else the first --namespace"
    )
    run.add_argument("--lease-name", default="longboat-operator", metavar="NAME", help="default: %(default)s")
    run.add_argument(
        "--lease-duration",
        type=float,
        metavar="SECONDS",
        help="how long a standby waits after the leader's last renewal before it takes over; default: "
        f"{LEASE_BEYOND_REQUEST_SECONDS:g} more than --request-timeout",
    )
    run.add_argument(
        "--adopt",
        action="store_true",
        help="take over the jobs of other releases (status.operator), even of those that hold their Lease",
    )
    run.add_argument(
        "--may-delete",
        action="store_true",
        help="delete Secrets and NetworkPolicies that jobs no longer need; requires the rights to do so, which the admission policy "
        "longboat-operator-deletes should limit",
    )
    run.add_argument(
        "--health-port", type=int, default=8081, metavar="PORT", help="/healthz and /readyz; default: %(default)s"
    )
    run.add_argument("--metrics-port", type=int, default=8080, metavar="PORT", help="/metrics; default: %(default)s")
    run.add_argument("--log-format", choices=("json", "text"), default="json", help="default: %(default)s")
    run.add_argument(
        "--requests-in-flight",
        type=_positive,
        default=32,
        metavar="N",
        help="how many requests to the API server may be in flight at once for jobs, apart from watches; default: %(default)s",
    )
    run.add_argument(
        "--request-timeout",
        type=_seconds,
        default=REQUEST_TIMEOUT_SECONDS,
        metavar="SECONDS",
        help="how long a request may take, apart from lists and watches; default: %(default)g",
    )
    run.add_argument(
        "--dns-peers",
        type=_dns_peers,
        default=DNS_PEERS,
        metavar="JSON",
        help="peers that reward and environment pods may send DNS queries to: a list of NetworkPolicyPeers; default: the pods of kube-system",
    )
    return parser


def _dns_peers(text: str) -> tuple[Object, ...]:
    try:
        return read_dns_peers(text)
    except ApiError as error:
        raise argparse.ArgumentTypeError("; ".join(error.problems)) from error


def _seconds(text: str) -> float:
    seconds = float(text)
    if not 0 < seconds < math.inf:  # of NaN, no comparison is true
        message = f"must be a finite number of seconds above 0, not {text}"
        raise argparse.ArgumentTypeError(message)
    return seconds


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        message = f"must be at least 1, not {number}"
        raise argparse.ArgumentTypeError(message)
    return number


if __name__ == "__main__":
    sys.exit(main())
