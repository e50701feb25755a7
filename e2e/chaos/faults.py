"""Injects each kind of fault into a cluster or a job, and says what it hit."""

import http.client
import os
import signal
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from e2e import installation
from e2e.chaos.schedule import Fault, Kind, choose
from e2e.cluster import process
from e2e.cluster.cluster import Cluster
from e2e.cluster.errors import ClusterError
from e2e.jobs import Job, Object

T = TypeVar("T")

RETRY_SECONDS = 120.0
"""How long a fault is tried again: the API server may be away because of another, or a pod may have no process yet."""


class NothingToHit(Exception):
    """There is no such pod or process at this moment."""


UNREACHABLE = (ClusterError, OSError, RuntimeError, http.client.HTTPException)
"""What clients of an API server raise while it is away."""


def carry_out(cluster: Cluster, fault: Fault, job: Job | None) -> str:
    """Carries out a fault, on `job` if it is a fault of one job, and returns its target. Outages are over when this returns.

    Raises as `persist` does.
    """
    if job is None:
        return persist(lambda: _OF_CLUSTER[fault.kind](cluster, fault))
    return persist(lambda: _OF_JOB[fault.kind](job, fault))


def persist(call: Callable[[], T]) -> T:
    """Returns what `call` returns; repeats it while it raises NothingToHit or one of UNREACHABLE.

    Raises the last such error after RETRY_SECONDS, and any other at once.
    """
    deadline = time.monotonic() + RETRY_SECONDS
    while True:
        try:
            return call()
        except (*UNREACHABLE, NothingToHit):
            if time.monotonic() > deadline:
                raise
            time.sleep(0.5)


def _delete_pod(job: Job, fault: Fault) -> str:
    pods = sorted(name for name, pod in job.pods().items() if "deletionTimestamp" not in pod["metadata"])
    if not pods:
        raise NothingToHit(f"{job.name} has no pod")
    name = choose(pods, fault.place)
    how = ("--grace-period=0", "--force") if fault.forced else ("--wait=false",)
    job.cluster.kubectl("-n", job.namespace, "delete", "pod", name, "--ignore-not-found", *how)
    return f"{name}, {'by force' if fault.forced else 'with grace'}"


def _kill_process(job: Job, fault: Fault) -> str:
    pod, container, pids = _container(job, fault.place)
    titles = _titles(pids)
    if not titles:
        raise NothingToHit(f"{pod}/{container} has no process")
    title = choose(sorted(titles), fault.thing)
    _kill(titles[title])
    return f"{pod}/{container}: {title}"


def _kill_container(job: Job, fault: Fault) -> str:
    pod, container, pids = _container(job, fault.place)
    first = {pid for pid in pids if _parent(pid) not in pids}
    if not first:
        raise NothingToHit(f"{pod}/{container} has no process")
    _kill(first)
    return f"{pod}/{container}"


def _kill_head(job: Job, fault: Fault) -> str:
    pod, container, pids = _container(job, fault.place, "ray-head")
    servers = _titles(pids).get("gcs_server")
    if not servers:
        raise NothingToHit(f"{pod}/{container} has no gcs_server")
    _kill(servers)
    return f"{pod}/{container}: gcs_server"


def _suspend(job: Job, fault: Fault) -> str:
    """Suspends the job, and resumes it after half of `outage` seconds, even if it has not suspended by then.

    If the fault is `forced`, they only begin when it has.
    """
    job.patch({"suspend": True})
    if fault.forced:
        job.wait("suspended", lambda: job.status().get("phase") == "Suspended")
    time.sleep(fault.outage / 2)
    persist(lambda: job.patch({"suspend": False}))
    return f"for {fault.outage / 2:.1f} s{' from when it was suspended' if fault.forced else ''}"


def _delete_operator(cluster: Cluster, fault: Fault) -> str:
    how = ("--grace-period=0", "--force") if fault.forced else ("--wait=false",)
    pods = installation.operator_pods(cluster)
    cluster.kubectl("-n", installation.NAMESPACE, "delete", "pod", "--ignore-not-found", *pods, *how)
    return f"{', '.join(pods)}, {'by force' if fault.forced else 'with grace'}"


def _kill_operator(cluster: Cluster, fault: Fault) -> str:
    kill_operator(cluster)
    return "its container"


def kill_operator(cluster: Cluster) -> None:
    """Sends SIGKILL to the first processes of all containers in the operator's namespace, which their node then restarts."""
    listed = cluster.api.get(f"/api/v1/namespaces/{installation.NAMESPACE}/pods") or {}
    pids = set().union(*(pids for _, pids in _containers(cluster, listed.get("items", []))))
    _kill(pid for pid in pids if _parent(pid) not in pids)


def _power_off(cluster: Cluster, fault: Fault) -> str:
    node = choose(cluster.nodes, fault.place)
    node.power_off()
    time.sleep(fault.outage)
    node.power_on()
    return f"{node.name} for {fault.outage} s"


def _kill_kubelet(cluster: Cluster, fault: Fault) -> str:
    node = choose(cluster.nodes, fault.place)
    node.kill_kubelet()
    time.sleep(fault.outage)
    node.start_kubelet()
    return f"of {node.name} for {fault.outage} s"


def _freeze(component: str) -> Callable[[Cluster, Fault], str]:
    def freeze(cluster: Cluster, fault: Fault) -> str:
        cluster.control_plane.signal(component, signal.SIGSTOP)
        time.sleep(fault.outage)
        cluster.control_plane.signal(component, signal.SIGCONT)
        return f"for {fault.outage} s"

    return freeze


def _restart_api(cluster: Cluster, fault: Fault) -> str:
    cluster.control_plane.restart("kube-apiserver")
    return "at once"


_OF_JOB: dict[Kind, Callable[[Job, Fault], str]] = {
    Kind.DELETE_POD: _delete_pod,
    Kind.KILL_PROCESS: _kill_process,
    Kind.KILL_CONTAINER: _kill_container,
    Kind.KILL_HEAD: _kill_head,
    Kind.SUSPEND: _suspend,
}
_OF_CLUSTER: dict[Kind, Callable[[Cluster, Fault], str]] = {
    Kind.DELETE_OPERATOR: _delete_operator,
    Kind.KILL_OPERATOR: _kill_operator,
    Kind.POWER_OFF: _power_off,
    Kind.KILL_KUBELET: _kill_kubelet,
    Kind.FREEZE_API: _freeze("kube-apiserver"),
    Kind.FREEZE_ETCD: _freeze("etcd"),
    Kind.RESTART_API: _restart_api,
}


def _container(job: Job, draw: float, name: str = "") -> tuple[str, str, set[int]]:
    """Chooses a running container of the job, of this name if one is given; returns its pod, its name and its processes.

    Raises NothingToHit if there is none.
    """
    running = [
        (where, pids) for where, pids in _containers(job.cluster, job.pods().values()) if not name or where[1] == name
    ]
    if not running:
        raise NothingToHit(f"{job.name} has no running container {name}")
    (pod, container), pids = choose(sorted(running, key=lambda container_pids: container_pids[0]), draw)
    return pod, container, pids


def _containers(cluster: Cluster, pods: Iterable[Object]) -> list[tuple[tuple[str, str], set[int]]]:
    """Returns ((pod, container), its processes) for every container that runs and has processes."""
    containers = []
    for pod in pods:
        status = pod.get("status", {})
        for container in [*status.get("initContainerStatuses", []), *status.get("containerStatuses", [])]:
            if "running" in container["state"]:
                identity = container["containerID"].removeprefix("containerd://")
                pids = cluster.node(pod["spec"]["nodeName"]).processes(identity)
                containers.append(((pod["metadata"]["name"], container["name"]), pids))
    return [(where, pids) for where, pids in containers if pids]


def _titles(pids: set[int]) -> dict[str, set[int]]:
    """Groups processes by `title`; those without one, such as ended ones, are left out."""
    titles: dict[str, set[int]] = {}
    for pid in pids:
        if name := title(process.command_line(pid)):
            titles.setdefault(name, set()).add(pid)
    return titles


def title(words: list[str]) -> str:
    """Names a process by the words of its command line, empty if there are none (pure).

    The name is that of its Ray actor, of its Python script, or of its program or Python module with up to two commands.
    """
    if not words:
        return ""
    if words[0].startswith("ray::"):
        return words[0].split(".")[0].split(" ")[0]
    names = [word for word in words if not word.startswith("-")]
    if names and Path(names[0]).name.startswith("python"):
        names = names[1:]
    if names and names[0].endswith(".py"):
        return "/".join(Path(names[0]).parts[-2:])
    return " ".join([Path(name).name for name in names[:1]] + [name for name in names[1:3] if name.isidentifier()])


def _parent(pid: int) -> int:
    """Returns the parent's id; 0 if the process has ended."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except (FileNotFoundError, ProcessLookupError):
        return 0


def _kill(pids: Iterable[int]) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
