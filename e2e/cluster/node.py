"""A node: one containerd and one kubelet. All nodes of a cluster share its network namespace and address."""

import os
import signal
from dataclasses import dataclass
from pathlib import Path

from e2e.cluster import cgroups, configs, process
from e2e.cluster.api import Api
from e2e.cluster.binaries import KUBEBOX
from e2e.cluster.namespaces import Namespaces
from e2e.cluster.network import Network
from e2e.cluster.paths import Layout, NodeLayout
from e2e.cluster.pki import Authority
from e2e.cluster.shell import run
from e2e.cluster.timings import Timings
from e2e.cluster.waiting import accepts_connections, wait_for_process


@dataclass(frozen=True)
class Node:
    """The node with number `offset` of a cluster."""

    cluster: str
    layout: NodeLayout
    network: Network
    namespaces: Namespaces
    timings: Timings
    offset: int

    @classmethod
    def number(
        cls, offset: int, cluster: str, layout: Layout, network: Network, namespaces: Namespaces, timings: Timings
    ) -> "Node":
        """Returns a handle to the node with number `offset`, whether it exists or not."""
        return cls(cluster, NodeLayout(layout, f"node{offset}"), network, namespaces, timings, offset)

    @property
    def name(self) -> str:
        """The Kubernetes node's name."""
        return self.layout.name

    @property
    def group(self) -> str:
        """The root of the node's control groups."""
        return f"{cgroups.cluster_root(self.cluster)}/{self.name}"

    @property
    def system_group(self) -> str:
        """The control group of the node's own processes."""
        return f"{self.group}/system"

    def create(self, authority: Authority, first_images: list[Path]) -> None:
        """Makes the node's files, starts it and imports its first images; doesn't wait until it is Ready."""
        self.layout.kubelet_root.mkdir(parents=True)
        self.layout.pod_logs.mkdir()
        self.layout.loaded.mkdir()
        pair = authority.issue(
            self.name, f"system:node:{self.name}", "system:nodes", names=(self.name, self.network.node)
        )
        kubeconfig = configs.kubeconfig(self.cluster, self.network.api, authority.pair, pair)
        (self.layout.root / "kubeconfig").write_text(kubeconfig)
        self.layout.containerd_config.write_text(configs.containerd(self.layout))
        kubelet = configs.kubelet(self.layout, self.network, self.timings, self.offset, self.group)
        self.layout.kubelet_config.write_text(kubelet)
        cgroups.create(self.system_group)
        cgroups.set_shares(self.system_group, cgroups.SYSTEM_SHARES)
        self.start_containerd()
        for archive in first_images:
            self.load(archive)
        self.start_kubelet()

    def start_containerd(self) -> None:
        """Starts containerd and waits until it serves."""
        command = ["containerd", "--config", str(self.layout.containerd_config)]
        self._spawn("containerd", command)
        wait_for_process(
            lambda: accepts_connections(self.layout.socket),
            lambda: bool(process.find(command, self.system_group)),
            self.log("containerd"),
        )
        self.ctr("version")

    def start_kubelet(self) -> None:
        """Starts the kubelet, without waiting for it."""
        self._spawn("kubelet", self._kubelet)

    def kubelet_runs(self) -> bool:
        """Whether the kubelet's process is alive."""
        return bool(process.find(self._kubelet, self.system_group))

    def kill_kubelet(self) -> None:
        """Kills the kubelet and waits for its end: Kubernetes will take the node for lost while its containers run on."""
        for pid in process.find(self._kubelet, self.system_group):
            process.kill(pid)

    def signal_kubelet(self, number: signal.Signals) -> None:
        """Sends the kubelet a signal; SIGSTOP freezes it where it is until SIGCONT, while its containers run on."""
        for pid in process.find(self._kubelet, self.system_group):
            os.kill(pid, number)

    def power_off(self) -> None:
        """Kills kubelet, containerd and all containers without warning, and waits until they are gone."""
        cgroups.kill(self.group)

    def power_on(self) -> None:
        """Starts the node after `power_off`; doesn't wait until it is Ready."""
        self.layout.socket.unlink(missing_ok=True)
        self.start_containerd()
        self.start_kubelet()

    def group_of(self, container: str) -> str | None:
        """Returns the control group of a container with containerd's id `container`; None if there is none."""
        return cgroups.find(self.group, container)

    def processes(self, container: str) -> set[int]:
        """Returns the ids, as this machine counts, of the processes of a container with containerd's id `container`; none if it is gone."""
        group = self.group_of(container)
        return cgroups.processes(group) if group else set()

    def load(self, archive: Path) -> None:
        """Imports an image archive (OCI or Docker) into the node, unless this file (same name, size and mtime) was imported before."""
        status = archive.stat()
        version = f"{status.st_size} {status.st_mtime_ns}"
        loaded = self.layout.loaded / archive.name
        if not loaded.exists() or loaded.read_text() != version:
            self.ctr("images", "import", str(archive))
            loaded.write_text(version)

    def tag(self, ref: str, name: str) -> None:
        """Gives an image another name, taking it from the image that had it."""
        self.ctr("images", "tag", "--force", ref, name)

    def ctr(self, *argv: str) -> str:
        """Runs containerd's client against the node, in the kubelet's namespace of images and containers; returns its output."""
        return run(["ctr", "--address", self.layout.socket, "--namespace", "k8s.io", *argv])

    def ready(self, api: Api) -> bool:
        """Whether Kubernetes has the node and finds it Ready."""
        node = api.get(f"/api/v1/nodes/{self.name}")
        conditions = node["status"].get("conditions", []) if node else []
        return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)

    def log(self, component: str) -> Path:
        """Returns the path of the log of the node's containerd or kubelet."""
        return self.layout.cluster.logs / f"{self.name}-{component}.log"

    @property
    def _kubelet(self) -> list[str]:
        return [
            str(KUBEBOX.path),
            "kubelet",
            f"--config={self.layout.kubelet_config}",
            f"--kubeconfig={self.layout.root}/kubeconfig",
            f"--root-dir={self.layout.kubelet_root}",
            f"--hostname-override={self.name}",
            f"--node-ip={self.network.node}",
        ]

    def _spawn(self, component: str, argv: list[str]) -> None:
        self.namespaces.spawn(argv, self.log(component), self.system_group)
