"""The life of a cluster: up, in use, down."""

import contextlib
import fcntl
import json
import os
import re
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path

from e2e.cluster import cgroups, namespaces, network
from e2e.cluster.api import PATIENCE, Api
from e2e.cluster.binaries import KUBEBOX
from e2e.cluster.control_plane import ControlPlane
from e2e.cluster.errors import ClusterError, CommandError
from e2e.cluster.images import catalogue, pause
from e2e.cluster.namespaces import Namespaces
from e2e.cluster.network import Network
from e2e.cluster.node import Node
from e2e.cluster.paths import Layout
from e2e.cluster.pki import Authority
from e2e.cluster.shell import require, run
from e2e.cluster.timings import QUICK, Timings
from e2e.cluster.waiting import wait_for_process

PROGRAMS = ("containerd", "ctr", "ip", "iptables", "nsenter", "runc", "setsid", "unshare")

# What kubectl says if it could not connect, so that nothing was asked.
# An API server that can't reach a webhook has answered.
_UNCONNECTED = re.compile(
    r"(?!.*failed calling webhook).*(TLS handshake timeout|connection refused|dial tcp)", re.DOTALL
)


@dataclass
class Cluster:
    """A running cluster."""

    name: str
    network: Network
    namespaces: Namespaces
    timings: Timings
    nodes: list[Node] = field(default_factory=list)

    @classmethod
    def find(cls, name: str) -> "Cluster | None":
        """Finds the cluster with this name; None if it isn't up."""
        file = Layout.from_name(name).description
        if not file.exists():
            return None
        described = json.loads(file.read_text())
        processes = Namespaces(described["pid"])
        cluster = cls(name, Network(described["index"]), processes, Timings(**described["timings"]))
        cluster.nodes = [cluster._node(offset) for offset in range(described["nodes"])]
        return cluster if processes.alive() else None

    @classmethod
    def up(cls, name: str, nodes: int = 1, timings: Timings = QUICK) -> "Cluster":
        """Starts a new cluster and waits until it takes pods; if that fails, removes what it has made.

        Raises ClusterError if a cluster of this name is up already, or the machine lacks a program that it needs.
        """
        if nodes < 1:
            raise ClusterError(f"a cluster has at least 1 node, not {nodes}")
        _check_machine()
        with _lock(name):
            if cls.find(name) is not None:
                raise ClusterError(f"cluster {name} is up already")
            _remove(name)  # what a killed `up` or a reboot may have left
            try:
                return cls._create(name, nodes, timings)
            except BaseException:
                _remove(name)
                raise

    @classmethod
    def down(cls, name: str) -> bool:
        """Removes the cluster with this name, whether it is up or not; returns whether its folder existed."""
        _check_root()
        with _lock(name):
            existed = Layout.from_name(name).root.exists()
            _remove(name)
            return existed

    @property
    def layout(self) -> Layout:
        """The cluster's files."""
        return Layout.from_name(self.name)

    @property
    def kubeconfig(self) -> Path:
        """The administrator's kubeconfig; it works from the host."""
        return self.layout.kubeconfig

    @property
    def environment(self) -> dict[str, str]:
        """The caller's environment with kubectl and other clients pointed at the cluster."""
        return {
            **os.environ,
            "KUBECONFIG": str(self.kubeconfig),
            "KUBECACHEDIR": str(self.layout.root / "kubectl-cache"),
            "NO_PROXY": ",".join(filter(None, (os.environ.get("NO_PROXY"), self.network.host, self.network.node))),
        }

    @property
    def api(self) -> Api:
        """A client with the administrator's rights."""
        return self.control_plane.api

    def kubectl(self, *argv: str, stdin: str | None = None, timeout: float | None = 360) -> str:
        """Runs kubectl as the administrator and returns its output.

        A command whose error output says that it couldn't connect is repeated until PATIENCE seconds have passed.

        Raises:
            CommandError: it failed.
            ClusterError: it hasn't ended after `timeout` seconds.
        """
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                return run([KUBEBOX.path, "kubectl", *argv], stdin=stdin, env=self.environment, timeout=timeout)
            except CommandError as error:
                if not _UNCONNECTED.match(error.stderr) or time.monotonic() > deadline:
                    raise
                time.sleep(1)

    def load(self, archive: Path) -> None:
        """Imports an image archive into every node that hasn't imported this file yet."""
        with ThreadPoolExecutor() as pool:
            list(pool.map(lambda node: node.load(archive), self.nodes))

    def load_image(self, name: str) -> str:
        """Builds an image of ours unless that is done, and imports it; returns the name to use it by.

        The name changes with what the image is built from, so a Deployment that is given a new one rolls out. On the nodes,
        `localhost/longboat-NAME:dev` is the version that this loaded last.
        """
        image = catalogue.find(name)
        built = image.build()
        self.load(built.archive)
        for node in self.nodes:
            node.tag(built.ref, image.nickname)
        return built.ref

    def trust_registry(self, address: str) -> None:
        """Lets the nodes pull from a registry at `address` (host:port) that speaks HTTP without TLS."""
        folder = self.layout.registries / address
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "hosts.toml").write_text(f'[host."http://{address}"]\n')

    def node(self, name: str) -> Node:
        """Finds the node with this name; raises ClusterError when there is none."""
        for node in self.nodes:
            if node.name == name:
                return node
        raise ClusterError(f"cluster {self.name} has no node {name!r}, only {', '.join(n.name for n in self.nodes)}")

    def add_node(self) -> Node:
        """Adds a node, waits until it is Ready, and returns it."""
        with _lock(self.name):
            node = self._begin_node()
            self._await_node(node)
            self._describe()
        return node

    @classmethod
    def _create(cls, name: str, nodes: int, timings: Timings) -> "Cluster":
        layout = Layout.from_name(name)
        for folder in (layout.conf / "cni", layout.logs, layout.nodes):
            folder.mkdir(parents=True)
        cgroups.create(_control_group(name))
        cgroups.set_shares(cgroups.cluster_root(name), cgroups.CLUSTER_SHARES)
        cgroups.set_shares(_control_group(name), cgroups.SYSTEM_SHARES)
        claimed = network.claim(owner=str(layout.root))
        processes = namespaces.start(layout.logs / "init.log", _control_group(name))
        network.connect(claimed, processes.pid)
        cluster = cls(name, claimed, processes, timings)
        cluster.control_plane.write_files()
        cluster.control_plane.start()
        for _ in range(nodes):
            cluster._begin_node()
        for node in cluster.nodes:
            cluster._await_node(node)
        cluster.control_plane.await_ready()
        cluster._describe()
        return cluster

    @property
    def control_plane(self) -> ControlPlane:
        """etcd, API server and the rest, as processes."""
        group = _control_group(self.name)
        return ControlPlane(self.name, self.layout, self.network, self.namespaces, self.timings, group)

    def _node(self, offset: int) -> Node:
        return Node.number(offset, self.name, self.layout, self.network, self.namespaces, self.timings)

    def _begin_node(self) -> Node:
        node = self._node(len(self.nodes))
        node.create(Authority(self.layout.pki), first_images=[pause.archive()])
        self.nodes.append(node)
        return node

    def _await_node(self, node: Node) -> None:
        wait_for_process(lambda: node.ready(self.api), node.kubelet_runs, node.log("kubelet"))

    def _describe(self) -> None:
        """Writes down what `find` needs: from then on the cluster counts as up."""
        described = {
            "index": self.network.index,
            "pid": self.namespaces.pid,
            "nodes": len(self.nodes),
            "timings": asdict(self.timings),
        }
        part = self.layout.description.with_suffix(".part")
        part.write_text(json.dumps(described, indent=2) + "\n")
        part.rename(self.layout.description)


def names() -> list[str]:
    """Lists the names of all clusters in the cache folder, whether they are up or not."""
    folder = Layout.from_name("any").root.parent
    return sorted(child.name for child in folder.iterdir() if child.is_dir()) if folder.exists() else []


@contextlib.contextmanager
def own(program: str, nodes: int, timings: Timings = QUICK) -> Iterator[Cluster]:
    """Yields a new cluster for this process, and takes it down at the end of the block.

    First takes down those of the same program whose process no longer exists.
    """
    for name in names():
        made = re.fullmatch(rf"{re.escape(program)}-(\d+)", name)
        if made and not Path(f"/proc/{made[1]}").exists():
            Cluster.down(name)
    name = f"{program}-{os.getpid()}"
    try:
        yield Cluster.up(name, nodes, timings)
    finally:
        Cluster.down(name)


def _control_group(name: str) -> str:
    return f"{cgroups.cluster_root(name)}/control-plane"


def _remove(name: str) -> None:
    """Removes a cluster, in whatever state it is.

    Raises ClusterError if a process doesn't end, or something is still mounted in its folder.
    """
    layout = Layout.from_name(name)
    cgroups.kill(cgroups.cluster_root(name))
    cgroups.remove(cgroups.cluster_root(name))
    network.release(owner=str(layout.root))
    if layout.root.exists():
        mounted = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
        inside = [point for point in mounted if Path(point).is_relative_to(layout.root)]
        if inside:
            raise ClusterError(f"{inside[0]} is still mounted: unmount it, then run `down` again")
        run(["rm", "-rf", "--one-file-system", layout.root])


def _check_root() -> None:
    if os.geteuid() != 0:
        raise ClusterError("the test cluster makes namespaces and control groups: run this as root (sudo)")


def _check_machine() -> None:
    _check_root()
    require(*PROGRAMS)
    KUBEBOX.require()
    pause.archive()


@contextlib.contextmanager
def _lock(name: str) -> Iterator[None]:
    """Holds the lock of the cluster with this name for the block; removes its file at the end if no cluster is left."""
    root = Layout.from_name(name).root
    root.parent.mkdir(parents=True, exist_ok=True)
    path = root.parent / f"{name}.lock"
    with contextlib.ExitStack() as stack:
        while True:
            file = stack.enter_context(path.open("w"))
            fcntl.flock(file, fcntl.LOCK_EX)
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(path.stat(), os.fstat(file.fileno())):
                    break
            # Its last holder removed the file while we waited: lock the new one.
        try:
            yield
        finally:
            if not root.exists():
                path.unlink()
