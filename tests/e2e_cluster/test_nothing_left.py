"""A cluster that is taken down leaves the machine as it was."""

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from e2e.cluster import Cluster, ClusterError, Timings, cgroups, network, process
from e2e.cluster.paths import Layout, cache
from e2e.cluster.timings import QUICK
from tests.support.waiting import eventually

pytestmark = [pytest.mark.cluster, pytest.mark.extended, pytest.mark.alone]

NAME = "leaves-nothing"
POD = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "web", "labels": {"app": "web"}},
    "spec": {
        "containers": [
            {
                "name": "pause",
                "image": "localhost/longboat-pause:1",
                "ports": [{"containerPort": 80, "hostPort": 8080}],
                "resources": {"limits": {"cpu": "100m", "memory": "32Mi"}},
                "volumeMounts": [{"name": "memory", "mountPath": "/memory"}, {"name": "disk", "mountPath": "/disk"}],
            }
        ],
        "volumes": [{"name": "memory", "emptyDir": {"medium": "Memory"}}, {"name": "disk", "emptyDir": {}}],
    },
}
READY = "jsonpath={.status.conditions[?(@.type=='Ready')].status}"
SERVICE = {
    "apiVersion": "v1",
    "kind": "Service",
    "metadata": {"name": "web"},
    "spec": {"type": "NodePort", "selector": {"app": "web"}, "ports": [{"port": 80}]},
}


@dataclass(frozen=True)
class Machine:
    """What a cluster could leave on a machine. Clusters of others may come and go meanwhile: theirs are left out."""

    mounts: frozenset[str]
    links: frozenset[str]
    network_namespaces: frozenset[str]
    groups: frozenset[str]
    packet_filter: str
    system_folders: frozenset[str]

    @classmethod
    def now(cls) -> "Machine":
        mounts = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
        others = tuple(f"{cache()}/{folder}/" for folder in ("buildah", "clusters"))
        own_root = str(Layout.from_name(NAME).root)
        links = json.loads(_output("ip", "-json", "link"))
        return cls(
            frozenset(point for point in mounts if point.startswith(own_root) or not point.startswith(others)),
            frozenset(link["ifname"] for link in links if link.get("ifalias", own_root) == own_root),
            frozenset(path.name for path in Path("/run/netns").glob("*")),
            frozenset(str(path) for root in cgroups.hierarchies() for path in root.rglob(f"*{NAME}*/**")),
            _output("iptables-save") + _output("ip6tables-save"),
            frozenset(
                str(path) for folder in ("/etc", "/run", "/var/lib", "/var/log") for path in Path(folder).iterdir()
            ),
        )


def test_up_pod_down_leaves_nothing() -> None:
    before = Machine.now()
    cluster = Cluster.up(NAME, nodes=2)
    try:
        cluster.kubectl(
            "apply", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": [POD, SERVICE]})
        )
        eventually(lambda: cluster.kubectl("get", "pod", "web", "-o", READY), "True".__eq__)
        inside = _processes_of(cluster)
        during = Machine.now()
    finally:
        assert Cluster.down(NAME)

    # The cluster did have what must be gone now: else the comparison below would show nothing.
    assert {"etcd", "kubelet", "containerd-shim", "pause"} <= {name for name, _ in inside}
    assert cluster.network.link in during.links
    assert during.groups > before.groups
    assert [pid for _, pid in inside if process.command_line(pid)] == []
    assert not list(Layout.from_name(NAME).root.parent.glob(f"{NAME}*"))
    assert Machine.now() == before
    assert not Cluster.down(NAME), "a second `down` finds nothing"


def test_a_failed_up_leaves_nothing_and_says_why() -> None:
    before = Machine.now()
    refused = Timings(**{**vars(QUICK), "max_restart_backoff": 100_000})
    with pytest.raises(ClusterError, match=r"(?s)node0-kubelet has ended.*MaxContainerRestartPeriod"):
        Cluster.up(NAME, timings=refused)
    assert not Layout.from_name(NAME).root.exists()
    assert Machine.now() == before


def test_down_removes_a_half_made_cluster() -> None:
    layout = Layout.from_name(NAME)
    layout.logs.mkdir(parents=True)
    cgroups.create(f"{cgroups.cluster_root(NAME)}/control-plane")
    claimed = network.claim(owner=str(layout.root))
    assert claimed.link in Machine.now().links
    assert Cluster.find(NAME) is None
    assert Cluster.down(NAME)
    assert claimed.link not in Machine.now().links
    assert not Machine.now().groups
    assert not layout.root.exists()


def _processes_of(cluster: Cluster) -> set[tuple[str, int]]:
    """Name and id of every process in the cluster's process namespace, and of those of its control groups."""
    space = Path(f"/proc/{cluster.namespaces.pid}/ns/pid").readlink()
    found = set()
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            held = (entry / "ns" / "pid_for_children").readlink() == space or cgroups.cluster_root(NAME) in (
                entry / "cgroup"
            ).read_text()
            if held:
                found.add((_program(entry), int(entry.name)))
        except OSError:
            continue  # it ended while we looked
    return found


def _program(entry: Path) -> str:
    """The component's or program's name; kubebox runs several components."""
    words = (entry / "cmdline").read_bytes().decode().split("\0")
    name = words[1] if words[0].endswith("kubebox") else Path(words[0]).name
    return "containerd-shim" if name.startswith("containerd-shim") else name


def _output(*argv: str) -> str:
    return subprocess.run(argv, check=True, capture_output=True, text=True).stdout
