"""A cluster's control groups: one root of its own in every hierarchy.

/longboat-NAME/control-plane          API server, controllers, DNS
/longboat-NAME/NODE/system            the node's containerd and kubelet
/longboat-NAME/NODE/kubepods/...      made by the kubelet
"""

import contextlib
import errno
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

from e2e.cluster.errors import ClusterError

MOUNT = Path("/sys/fs/cgroup")
V2_CONTROLLERS = ("cpuset", "cpu", "io", "memory", "hugetlb", "pids")
CLUSTER_SHARES = 4096  # against processes of the host, each of which may count as much as a new group
SYSTEM_SHARES = 8192  # against pods: the control plane must answer while they burn every CPU

GONE = (errno.ENOENT, errno.ENODEV)  # a group may be removed while it is read


def cluster_root(name: str) -> str:
    """Returns the root of a cluster's groups."""
    return f"/longboat-{name}"


def hierarchies() -> list[Path]:
    """Lists the mounted hierarchies: one for cgroup v2, several for v1. Raises ClusterError if there is none."""
    if (MOUNT / "cgroup.controllers").exists():
        return [MOUNT]
    folders = [folder for folder in sorted(MOUNT.iterdir()) if (folder / "cgroup.procs").exists()]
    if not folders:
        raise ClusterError(f"no control groups are mounted below {MOUNT}: the test cluster needs v1 or v2")
    return list({folder.resolve(): folder for folder in folders}.values())


def create(group: str) -> None:
    """Creates a group, such as `/longboat-dev/node0`, and its parents in every hierarchy, ready to take processes."""
    for hierarchy in hierarchies():
        folder = hierarchy
        for part in Path(group.strip("/")).parts:
            _pass_down(folder)
            folder /= part
            folder.mkdir(exist_ok=True)
            _inherit_cpuset(folder)


def _pass_down(folder: Path) -> None:
    """Lets the children of a v2 group use those of V2_CONTROLLERS that the group has."""
    if not (folder / "cgroup.subtree_control").exists():
        return
    available = (folder / "cgroup.controllers").read_text().split()
    wanted = [f"+{name}" for name in V2_CONTROLLERS if name in available]
    (folder / "cgroup.subtree_control").write_text(" ".join(wanted))


def _inherit_cpuset(folder: Path) -> None:
    """Gives a new v1 cpuset its parent's CPUs and memory nodes: while it is empty it takes no process."""
    for name in ("cpuset.cpus", "cpuset.mems"):
        file = folder / name
        if file.exists() and (folder / "cgroup.clone_children").exists() and not file.read_text().strip():
            file.write_text((folder.parent / name).read_text())


def set_shares(group: str, shares: int) -> None:
    """Sets a group's weight against its siblings when CPUs are short (1024 is a process's or a new group's)."""
    for hierarchy in hierarchies():
        folder = _folder(hierarchy, group)
        if (folder / "cpu.shares").exists():
            (folder / "cpu.shares").write_text(str(shares))
        elif (folder / "cpu.weight").exists():
            (folder / "cpu.weight").write_text(str(shares * 100 // 1024))


def process_files(group: str) -> list[Path]:
    """Lists the files that a process writes itself into in order to join the group."""
    return [_folder(hierarchy, group) / "cgroup.procs" for hierarchy in hierarchies()]


def processes(group: str) -> set[int]:
    """Returns the ids of the processes in a group and below it."""
    pids: set[int] = set()
    for hierarchy in hierarchies():
        for folder in _descend(_folder(hierarchy, group)):
            try:
                pids.update(int(line) for line in (folder / "cgroup.procs").read_text().split())
            except OSError as error:
                if error.errno not in GONE:
                    raise
    return pids - {0}


def find(group: str, name: str) -> str | None:
    """Finds the group called `name` at or below a group, in the first hierarchy; None if there is none."""
    hierarchy = hierarchies()[0]
    folders = (folder for folder in _descend(_folder(hierarchy, group)) if folder.name == name)
    return next((f"/{folder.relative_to(hierarchy)}" for folder in folders), None)


def cpu_quota(group: str) -> int | None:
    """Returns the millicores that a group may use by the quota in its own files; None without a quota, or if there is no such group."""
    for hierarchy in hierarchies():
        folder = _folder(hierarchy, group)
        try:
            if (folder / "cpu.max").exists():
                quota, period = (folder / "cpu.max").read_text().split()
                return None if quota == "max" else int(quota) * 1000 // int(period)
            if (folder / "cpu.cfs_quota_us").exists():
                quota, period = ((folder / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period"))
                return None if int(quota) < 0 else int(quota) * 1000 // int(period)
        except OSError as error:
            if error.errno not in GONE:
                raise
    return None


def kill(group: str, patience: float = 120) -> None:
    """Kills every process in a group and below it, frozen ones too, and waits until they are gone.

    Raises ClusterError if they aren't after `patience` seconds.

    runc freezes a container without a process namespace of its own to signal its processes. If runc is killed then, it stays frozen.
    """
    deadline = time.monotonic() + patience
    while pids := processes(group):
        thaw(group)
        if time.monotonic() > deadline:
            raise ClusterError(f"processes {sorted(pids)} of control group {group} don't end after SIGKILL")
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):  # it has just ended
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)


def thaw(group: str) -> None:
    """Lets the processes in a group and below it run again. A v1 group holds on to a killed process until then."""
    for hierarchy in hierarchies():
        for folder in _descend(_folder(hierarchy, group)):
            with contextlib.suppress(OSError):  # the group has just gone, or is of a hierarchy that freezes nothing
                if (folder / "freezer.state").exists():
                    (folder / "freezer.state").write_text("THAWED")
                elif (folder / "cgroup.freeze").exists():
                    (folder / "cgroup.freeze").write_text("0")


def remove(group: str, patience: float = 120) -> None:
    """Removes a group and everything below it, waiting up to `patience` seconds for the kernel to let go of ended processes.

    Raises ClusterError if a group can't be removed by then.
    """
    deadline = time.monotonic() + patience
    for hierarchy in hierarchies():
        for folder in _descend(_folder(hierarchy, group)):
            while folder.exists():
                try:
                    folder.rmdir()
                except OSError as error:
                    if time.monotonic() > deadline:
                        raise ClusterError(f"control group {folder} can't be removed: {error.strerror}") from error
                    time.sleep(0.02)


def _folder(hierarchy: Path, group: str) -> Path:
    return hierarchy / group.strip("/")


def _descend(folder: Path) -> Iterator[Path]:
    """Yields the groups below a folder and itself, children first; nothing when it doesn't exist."""
    for inside, _, _ in os.walk(folder, topdown=False):
        yield Path(inside)
