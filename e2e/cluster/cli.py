"""The command line: `python -m e2e.cluster COMMAND`."""

import argparse
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

from e2e.cluster import cluster as clusters
from e2e.cluster.binaries import BINARIES, KUBEBOX
from e2e.cluster.cluster import Cluster
from e2e.cluster.errors import ClusterError
from e2e.cluster.images import catalogue
from e2e.cluster.paths import default_name
from e2e.cluster.timings import DEFAULT, QUICK

Options = argparse.Namespace
Command = Callable[[Options], None]


def main(argv: list[str] | None = None) -> int:
    """Runs a command; returns 0, or 1 after a ClusterError. `kubectl` replaces this process if the cluster is up."""
    options = _parser().parse_args(argv)
    try:
        options.run(options)
    except ClusterError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def up(options: Options) -> None:
    """Bring a cluster up, unless it is."""
    cluster = Cluster.find(options.name)
    if cluster is not None:
        print(f"cluster {options.name} is up already")
    else:
        begun = time.monotonic()
        cluster = Cluster.up(options.name, options.nodes, DEFAULT if options.real_timings else QUICK)
        print(f"cluster {cluster.name} is up ({time.monotonic() - begun:.1f} s)")
    print(f"export KUBECONFIG={cluster.kubeconfig}")


def down(options: Options) -> None:
    """Remove a cluster and everything of it, unless it is down."""
    existed = Cluster.down(options.name)
    print(f"cluster {options.name} is down" if existed else f"cluster {options.name} is down already")


def status(_: Options) -> None:
    """List the clusters of this user."""
    names = clusters.names()
    if not names:
        print("no cluster is up")
    for name in names:
        cluster = Cluster.find(name)
        if cluster is None:
            print(f"{name}: stopped or half made; `down --name {name}` removes what is left")
            continue
        ready = sum(node.ready(cluster.api) for node in cluster.nodes)
        print(
            f"{name}: up, {ready}/{len(cluster.nodes)} nodes ready, {cluster.network.api}, logs {cluster.layout.logs}"
        )


def kubectl(options: Options) -> None:
    """Run kubectl against a cluster, with the rest of the command line."""
    arguments = options.arguments[1:] if options.arguments[:1] == ["--"] else options.arguments
    os.execve(KUBEBOX.path, [str(KUBEBOX.path), "kubectl", *arguments], _running(options.name).environment)


def kubeconfig(options: Options) -> None:
    """Print the path of the administrator's kubeconfig."""
    print(_running(options.name).kubeconfig)


def images(options: Options) -> None:
    """Build images of ours unless they are up to date, and print their archives."""
    for name in options.images or catalogue.DAILY:
        begun = time.monotonic()
        archive = catalogue.find(name).build().archive
        print(
            f"{name}: {archive} ({archive.stat().st_size / 1e6:.0f} MB, {time.monotonic() - begun:.1f} s)", flush=True
        )


def load(options: Options) -> None:
    """Import images into every node: archives, or images of ours, built if need be, whose names it prints."""
    cluster = _running(options.name)
    for image in options.images:
        if Path(image).is_file():
            cluster.load(Path(image))
        else:
            print(cluster.load_image(image), flush=True)


def add_node(options: Options) -> None:
    """Add a node and wait until it is Ready."""
    print(f"node {_running(options.name).add_node().name} is ready")


def binaries(_: Options) -> None:
    """Build the Go programs that are missing from the cache."""
    for binary in BINARIES:
        begun = time.monotonic()
        existed = binary.path.exists()
        binary.ensure()
        duration = "" if existed else f" (built in {time.monotonic() - begun:.0f} s)"
        print(f"{binary.name} {binary.version}: {binary.path}{duration}", flush=True)


def _running(name: str) -> Cluster:
    cluster = Cluster.find(name)
    if cluster is None:
        raise ClusterError(f"cluster {name} is not up: run `python -m e2e.cluster up --name {name}`")
    return cluster


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m e2e.cluster", description="A real Kubernetes on this machine.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    own_images = ", ".join(catalogue.IMAGES)

    def add(name: str, run: Command) -> argparse.ArgumentParser:
        command = commands.add_parser(name, help=run.__doc__, description=run.__doc__)
        command.set_defaults(run=run)
        return command

    def add_named(name: str, run: Command) -> argparse.ArgumentParser:
        command = add(name, run)
        command.add_argument("--name", default=default_name(), help="the cluster (default: %(default)s)")
        return command

    command = add_named("up", up)
    command.add_argument("--nodes", type=int, default=1, help="number of nodes (default: %(default)s)")
    command.add_argument(
        "--real-timings", action="store_true", help="Kubernetes' own timings: a lost node is noticed in 50 s, not 5 s"
    )
    add_named("down", down)
    add("status", status)
    command = add_named("kubectl", kubectl)
    command.add_argument(
        "arguments",
        nargs=argparse.REMAINDER,
        help="kubectl's arguments; put `--` before them if the first begins with -",
    )
    add_named("kubeconfig", kubeconfig)
    command = add_named("load", load)
    command.add_argument("images", nargs="+", help=f"an archive (OCI or Docker), or one of: {own_images}")
    add_named("add-node", add_node)
    add("binaries", binaries)
    command = add("images", images)
    command.add_argument("images", nargs="*", help=f"some of {own_images} (default: {', '.join(catalogue.DAILY)})")
    return parser
