"""Provides the demo's Kubernetes: the test cluster of this machine, or a cluster that the user has."""

import json
import os
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import yaml

from e2e import host_runtime, installation, volumes
from e2e.cluster.binaries import KUBEBOX
from e2e.cluster.cluster import Cluster
from e2e.cluster.errors import ClusterError, CommandError
from e2e.cluster.images import catalogue
from e2e.quickstart import EXAMPLE, RUNTIME

NAMESPACE = "longboat-demo"
CLUSTER = "demo"

Object = dict[str, Any]


class Platform(Protocol):
    """A Kubernetes with what a platform team provides."""

    def intentions(self) -> list[str]:
        """Lists what the demo will do there, in words."""

    def prepare(self) -> None:
        """Installs Longboat, and makes a runtime template and a namespace with a claim `longboat-data`."""

    def kubectl(self, *argv: str, stdin: str | None = None) -> str:
        """Run kubectl and return its output; raises CommandError."""

    def lines(self, *argv: str) -> AbstractContextManager[Iterator[str]]:
        """Lines that kubectl prints, as they come, until the block is left."""

    def pod(self, command: list[str]) -> Object:
        """Returns the spec of a pod that runs a command of the runtime's environment.

        It has the data at /data, and the example's scripts at /scripts.
        """

    def remains(self, job: str) -> list[str]:
        """Lists ways, mostly commands, to look further at an RLJob and to clean up."""


@dataclass
class TestCluster:
    """A cluster of namespaces on this machine; pods run this machine's Python environment."""

    __test__ = False
    cluster: Cluster | None = None
    image: str = ""

    def intentions(self) -> list[str]:
        """See Platform."""
        return [
            f"start a Kubernetes of its own on this machine, named {CLUSTER!r}, in namespaces that leave no trace",
            "install Longboat's chart there and run the quickstart job in it",
        ]

    def prepare(self) -> None:
        """See Platform."""
        self.cluster = Cluster.find(CLUSTER) or Cluster.up(CLUSTER)
        operator, graders, host = (catalogue.find(name).build() for name in ("operator", "graders", "runtime-host"))
        self.image = host.ref
        for image in (operator, graders, host):
            self.cluster.load(image.archive)
        volumes.provide(self.cluster)
        installation.install(self.cluster.kubeconfig, operator.ref, "image.pullPolicy=Never")
        data = self.cluster.layout.root / "data" / NAMESPACE
        template = host_runtime.template(host.ref, RUNTIME, graders.ref)
        volumes.apply(self.cluster, [_namespace(), *host_runtime.claims(NAMESPACE, data), template])

    def kubectl(self, *argv: str, stdin: str | None = None) -> str:
        """See Platform."""
        assert self.cluster is not None
        return self.cluster.kubectl("-n", NAMESPACE, *argv, stdin=stdin, timeout=None)

    def lines(self, *argv: str) -> AbstractContextManager[Iterator[str]]:
        """See Platform."""
        assert self.cluster is not None
        return _lines([str(KUBEBOX.path), "kubectl", "-n", NAMESPACE, *argv], self.cluster.environment)

    def pod(self, command: list[str]) -> Object:
        """See Platform."""
        python = str(host_runtime.ENVIRONMENT / "bin" / "python")
        spec = host_runtime.utility_pod(self.image, [python if word == "python" else word for word in command])
        spec["volumes"].append({"name": "scripts", "configMap": {"name": "quickstart"}})
        spec["containers"][0]["volumeMounts"].append({"name": "scripts", "mountPath": "/scripts"})
        return spec

    def remains(self, job: str) -> list[str]:
        """See Platform."""
        assert self.cluster is not None
        return [
            f"export KUBECONFIG={self.cluster.kubeconfig}",
            f"kubectl -n {NAMESPACE} describe rljob {job}",
            f"{host_runtime.ENVIRONMENT / 'bin' / 'tensorboard'} --logdir {volumes.folder(self.cluster, NAMESPACE, f'{job}-checkpoint')}",
            f"make cluster-down NAME={CLUSTER}      # takes everything down",
        ]


@dataclass(frozen=True)
class OwnCluster:
    """The cluster of the current kubeconfig context, with images from a registry that it can reach."""

    operator_image: str
    graders_image: str
    runtime_image: str
    access_mode: str = "ReadWriteMany"

    def intentions(self) -> list[str]:
        """See Platform."""
        context = _run(["kubectl", "config", "current-context"]).strip()
        return [
            f"use the cluster of the current kubeconfig context, {context!r}",
            f"install or upgrade the Helm release {installation.RELEASE} in namespace {installation.NAMESPACE}",
            f"with it CRDs, cluster roles and an admission policy; operator image {self.operator_image}",
            f"make the namespace {NAMESPACE} with a claim of 5Gi ({self.access_mode}, default storage class)",
            f"make the ClusterRLRuntime {RUNTIME} with images {self.runtime_image} and {self.graders_image}, and one RLJob of four pods there",
            "leave all of that there when it is done",
        ]

    def prepare(self) -> None:
        """See Platform."""
        kubeconfig = Path(os.environ.get("KUBECONFIG", Path.home() / ".kube" / "config"))
        images = {"image": self.runtime_image, "gradersImage": self.graders_image}
        named = [f"runtimes.{RUNTIME}.{field}={image}" for field, image in images.items()]
        installation.install(kubeconfig, self.operator_image, *named, values=EXAMPLE / "values.yaml")
        _run(["kubectl", "apply", "--server-side", "-f", "-"], stdin=json.dumps(_namespace()))
        claim = _example("claim.yaml")
        claim["spec"]["accessModes"] = [self.access_mode]
        self.kubectl("apply", "--server-side", "-f", "-", stdin=json.dumps(claim))

    def kubectl(self, *argv: str, stdin: str | None = None) -> str:
        """See Platform."""
        return _run(["kubectl", "-n", NAMESPACE, *argv], stdin=stdin)

    def lines(self, *argv: str) -> AbstractContextManager[Iterator[str]]:
        """See Platform."""
        return _lines(["kubectl", "-n", NAMESPACE, *argv], os.environ)

    def pod(self, command: list[str]) -> Object:
        """See Platform."""
        spec: Object = _example("model.yaml")["spec"]["template"]["spec"]
        spec["containers"][0] |= {"image": self.runtime_image, "command": command}
        return spec

    def remains(self, job: str) -> list[str]:
        """See Platform."""
        return [
            f"kubectl -n {NAMESPACE} describe rljob {job}",
            f"mount the claim {job}-checkpoint in a pod of the runtime's image and run: tensorboard --logdir MOUNT",
            f"kubectl delete namespace {NAMESPACE} && kubectl delete clusterrlruntime {RUNTIME}      # the job and its data",
            f"helm uninstall {installation.RELEASE} -n {installation.NAMESPACE}      # Longboat",
        ]


def _example(name: str) -> Object:
    """Reads an object of the quickstart."""
    example: Object = yaml.safe_load((EXAMPLE / name).read_text())
    return example


def _namespace() -> Object:
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE, "labels": labels}}


@contextmanager
def _lines(argv: list[str], environment: Mapping[str, str]) -> Iterator[Iterator[str]]:
    with subprocess.Popen(argv, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield iter(process.stdout)
        finally:
            process.terminate()


def _run(argv: list[str], stdin: str | None = None) -> str:
    try:
        done = subprocess.run(argv, input=stdin, text=True, capture_output=True, check=False)
    except FileNotFoundError as error:
        raise ClusterError(
            f"{argv[0]} is missing: install it, or run the demo on the test cluster (`make demo`)"
        ) from error
    if done.returncode != 0:
        raise CommandError(argv, done.returncode, done.stderr or done.stdout)
    return done.stdout
