"""Longboat on a cluster as a platform team puts it there, its chart by Helm; and an operator that comes and goes."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from e2e.cluster.binaries import KUBEBOX
from e2e.cluster.cluster import Cluster
from e2e.cluster.errors import ClusterError
from e2e.host_runtime import REPOSITORY
from tests.support.waiting import DEADLINE_SECONDS, eventually

CHART = REPOSITORY / "charts" / "longboat"
NAMESPACE = "longboat-system"
RELEASE = "longboat"


def install(
    kubeconfig: Path,
    image: str,
    *settings: str,
    values: Path | None = None,
    chart: Path = CHART,
    reuse_values: bool = False,
) -> None:
    """Runs `helm upgrade --install` with `image` (name:tag) as the operator's, waiting until it is ready.

    `settings` are more `--set` values, and `values` a file of values. With `reuse_values` the chart gets those of the installed one, not
    its own defaults. Raises ClusterError with Helm's own words if it fails.
    """
    repository, _, tag = image.rpartition(":")
    settings = (f"image.repository={repository}", f"image.tag={tag}", *settings)
    helm(
        kubeconfig, "upgrade", "--install", RELEASE, str(chart), "--namespace", NAMESPACE, "--create-namespace",
        "--wait", f"--timeout={DEADLINE_SECONDS:.0f}s", *([f"--values={values}"] if values else []),
        *(["--reuse-values"] if reuse_values else []),
        *(word for setting in settings for word in ("--set", setting)),
    )  # fmt: skip


def roll_back(kubeconfig: Path, revision: int) -> None:
    """Runs `helm rollback`, waiting until the operator is ready. Raises ClusterError with Helm's own words if it fails."""
    options = ("--namespace", NAMESPACE, "--wait", f"--timeout={DEADLINE_SECONDS:.0f}s")
    helm(kubeconfig, "rollback", RELEASE, str(revision), *options)


def uninstall(cluster: Cluster) -> None:
    """Removes Longboat, if it is there, with its CustomResourceDefinitions and all objects of them."""
    options = ("--namespace", NAMESPACE, "--ignore-not-found", "--wait", f"--timeout={DEADLINE_SECONDS:.0f}s")
    helm(cluster.kubeconfig, "uninstall", RELEASE, *options)
    kinds = [f"{kind}.longboat.dev" for kind in ("rljobs", "rlruntimes", "clusterrlruntimes")]
    cluster.kubectl("delete", "crd", "--ignore-not-found", *kinds, timeout=None)


def helm(kubeconfig: Path, *argv: str) -> str:
    """Runs Helm with this kubeconfig and returns its output. Raises ClusterError with Helm's own words if it fails."""
    environment = {**os.environ, "KUBECONFIG": str(kubeconfig), **helm_folders()}
    program = [str(KUBEBOX.path), "helm"]
    done = subprocess.run([*program, *argv], env=environment, text=True, capture_output=True, check=False)
    if done.returncode != 0:
        raise ClusterError(f"helm {argv[0]} failed: {(done.stderr or done.stdout).strip()[-3000:]}")
    return done.stdout


def helm_folders() -> dict[str, str]:
    """Returns variables by which Helm's caches stay in Longboat's cache folder."""
    home = KUBEBOX.path.parent / "helm"
    return {f"HELM_{kind}_HOME": str(home / kind.lower()) for kind in ("CACHE", "CONFIG", "DATA")}


@contextmanager
def operator_away(cluster: Cluster) -> Iterator[None]:
    """Scales the operator to zero for the block, so that nothing is planned."""
    scale_operator(cluster, 0)
    try:
        yield
    finally:
        scale_operator(cluster, 1)
        await_operator(cluster)


def scale_operator(cluster: Cluster, replicas: int) -> None:
    """Scales the operator's Deployment; with 0 replicas, waits until no pod is left."""
    selected = ("-n", NAMESPACE, "-l", f"app.kubernetes.io/instance={RELEASE}")
    cluster.kubectl("scale", "deployment", *selected, f"--replicas={replicas}")
    if not replicas:
        eventually(lambda: operator_pods(cluster), lambda pods: not pods)


def await_operator(cluster: Cluster) -> None:
    """Waits until the operator's rollout is complete: all pods are up to date and available."""
    options = ("-n", NAMESPACE, "status", "deployment", RELEASE, f"--timeout={DEADLINE_SECONDS:.0f}s")
    cluster.kubectl("rollout", *options, timeout=None)


def operator_pods(cluster: Cluster) -> list[str]:
    """Names of the operator's pods."""
    names = cluster.kubectl("-n", NAMESPACE, "get", "pods", "-l", f"app.kubernetes.io/instance={RELEASE}", "-o", "name")
    return [name.removeprefix("pod/") for name in names.split()]
