"""Longboat ready for use on a test cluster: volumes, images, chart, runtime template, one namespace with claims for data."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from e2e import host_runtime, installation, volumes
from e2e.cluster.cluster import Cluster
from e2e.cluster.images import catalogue

RESTRICTED = {"pod-security.kubernetes.io/enforce": "restricted"}


@dataclass(frozen=True)
class Site:
    """Holds a namespace in which jobs run. `data` is the directory that pods see as /data."""

    cluster: Cluster
    namespace: str
    data: Path

    def apply_runtime(self, name: str, change: Callable[[dict[str, Any]], None]) -> str:
        """Applies a runtime template like that of `prepare`, whose pod specs, by role, `change` alters in place. Returns its name."""
        made = host_runtime.template(catalogue.find("runtime-host").build().ref, name)
        change({role: body["template"]["spec"] for role, body in made["spec"]["roles"].items()})
        volumes.apply(self.cluster, [made])
        return name

    def apply_runtime_without(self, name: str, *roles: str) -> str:
        """Applies a runtime template with which no node takes the pods of these roles: they would only take CPUs. Returns its name."""

        def make_unschedulable(specs: dict[str, Any]) -> None:
            for role in roles:
                specs[role]["nodeSelector"] = {"e2e.longboat.dev/none": "none"}

        return self.apply_runtime(name, make_unschedulable)


def data_folder(cluster: Cluster, namespace: str) -> Path:
    """Returns the directory that pods of the namespace see as /data."""
    return cluster.layout.root / "data" / namespace


def prepare(cluster: Cluster, namespace: str) -> Site:
    """Provides Longboat, volumes, and a namespace with claims and a runtime template `host`; models and data are up to the caller."""
    operator, host = catalogue.find("operator").build(), catalogue.find("runtime-host").build()
    for image in (operator, host):
        cluster.load(image.archive)
    installation.install(cluster.kubeconfig, operator.ref, "image.pullPolicy=Never")
    site = prepare_namespace(cluster, namespace)
    volumes.apply(cluster, [host_runtime.template(host.ref)])
    return site


def prepare_namespace(cluster: Cluster, namespace: str) -> Site:
    """Provides volumes, and a namespace with claims."""
    volumes.provide(cluster)
    labels = {"kubernetes.io/metadata.name": namespace, **RESTRICTED}
    volumes.apply(
        cluster, [{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace, "labels": labels}}]
    )
    folder = data_folder(cluster, namespace)
    volumes.apply(cluster, host_runtime.claims(namespace, folder))
    return Site(cluster, namespace, folder)
