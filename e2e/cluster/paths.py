"""Lays out the files of the test cluster, all of them outside the repository."""

import hashlib
import os
import re
from dataclasses import dataclass
from pathlib import Path

from e2e.cluster.errors import ClusterError

REPOSITORY = Path(__file__).resolve().parents[2]

HIDDEN = (Path("/run"), Path("/var/run"), Path("/var/lib"), Path("/var/log"))
"""Folders that a cluster sees empty: components write into them at fixed paths, which must not reach the host."""

MAX_NAME = 20
MAX_SOCKET = 107  # of a Unix socket's path, see unix(7)


def cache() -> Path:
    """Returns the folder for binaries, images and clusters: `$XDG_CACHE_HOME/longboat`, by default below `~/.cache`.

    Raises ClusterError if it would be hidden inside a cluster.
    """
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = (Path(home) / "longboat").resolve()
    if any(folder.is_relative_to(hidden) for hidden in HIDDEN):
        raise ClusterError(f"the cache folder {folder} is hidden inside a cluster: set XDG_CACHE_HOME to another place")
    return folder


def default_name() -> str:
    """Returns a cluster name made from this checkout's path, so that checkouts on one machine seldom share one."""
    digest = hashlib.sha256(str(REPOSITORY).encode()).hexdigest()[:4]
    stem = re.sub(r"[^a-z0-9]+", "-", REPOSITORY.name.lower()).strip("-")[: MAX_NAME - 5]
    return f"{stem or 'checkout'}-{digest}"


def check_name(name: str) -> str:
    """Returns the name; raises ClusterError if a cluster can't have it."""
    if len(name) > MAX_NAME or not re.fullmatch(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?", name):
        raise ClusterError(f"{name!r} is no cluster name: use up to {MAX_NAME} of a-z, 0-9 and '-', as in 'dev-2'")
    return name


@dataclass(frozen=True)
class Layout:
    """The files of one cluster."""

    root: Path

    @classmethod
    def from_name(cls, name: str) -> "Layout":
        """Returns the layout of the cluster with this name."""
        layout = cls(cache() / "clusters" / check_name(name))
        deepest = layout.nodes / "node99" / "kubelet" / "pod-resources" / "kubelet.sock"
        if len(str(deepest)) > MAX_SOCKET:
            raise ClusterError(f"sockets below {layout.root} have too long paths: set XDG_CACHE_HOME to a shorter one")
        return layout

    @property
    def description(self) -> Path:
        """Written last by `up`: a cluster without it is half made."""
        return self.root / "cluster.json"

    @property
    def kubeconfig(self) -> Path:
        """The administrator's kubeconfig, complete in itself."""
        return self.root / "kubeconfig"

    @property
    def pki(self) -> Path:
        """Keys and certificates."""
        return self.root / "pki"

    @property
    def conf(self) -> Path:
        """Configuration files of the components."""
        return self.root / "conf"

    @property
    def registries(self) -> Path:
        """Folders that say how containerd reaches each registry."""
        return self.root / "registries"

    @property
    def logs(self) -> Path:
        """One log a component."""
        return self.root / "logs"

    @property
    def etcd(self) -> Path:
        """etcd's data."""
        return self.root / "etcd"

    @property
    def nodes(self) -> Path:
        """One folder a node."""
        return self.root / "nodes"


@dataclass(frozen=True)
class NodeLayout:
    """The files of one node."""

    cluster: Layout
    name: str

    @property
    def root(self) -> Path:
        """The node's folder."""
        return self.cluster.nodes / self.name

    @property
    def socket(self) -> Path:
        """containerd's socket."""
        return self.root / "containerd.sock"

    @property
    def containerd_config(self) -> Path:
        """containerd's configuration file."""
        return self.root / "containerd.toml"

    @property
    def kubelet_config(self) -> Path:
        """The kubelet's configuration file."""
        return self.root / "kubelet.json"

    @property
    def kubelet_root(self) -> Path:
        """The kubelet's working folder: volumes and plugins."""
        return self.root / "kubelet"

    @property
    def pod_logs(self) -> Path:
        """Container logs."""
        return self.root / "pod-logs"

    @property
    def loaded(self) -> Path:
        """Folder with a file for each image archive that was imported; the file says which version."""
        return self.root / "loaded"
