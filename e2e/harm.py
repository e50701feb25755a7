"""Harms jobs: kills processes, deletes pods at once, freezes the API server."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from e2e.cluster.errors import CommandError
from e2e.installation import NAMESPACE as SYSTEM
from e2e.jobs import Job, Object
from tests.support.waiting import eventually

KILLED = 128 + signal.SIGKILL


def signal_process(job: Job, pod: str, container: str, word: str) -> None:
    """Sends SIGKILL to every process of a container whose command line matches `word`, a pattern of grep's.

    The container may end with its process, and with the container the shell that sent the signal, or the stream to it.
    """
    script = (
        f'for p in /proc/[0-9]*; do if tr "\\0" " " < $p/cmdline 2>/dev/null | grep -q "{word}"; '
        "then n=${p#/proc/}; [ $n = $$ ] || kill -9 $n; fi; done; true"
    )
    before = _running(job, pod, container)
    try:
        job.exec(pod, container, "sh", "-c", script)
    except CommandError as error:
        if error.status != KILLED:
            job.wait(f"{container} ends: {error}", lambda: _running(job, pod, container), lambda now: now != before)


def _running(job: Job, pod: str, container: str) -> str | None:
    """Returns the id of the container; None if it isn't running."""
    status = job.pods().get(pod, {}).get("status", {})
    containers = [*status.get("initContainerStatuses", []), *status.get("containerStatuses", [])]
    return next(
        (
            status["containerID"]
            for status in containers
            if status["name"] == container and "running" in status["state"]
        ),
        None,
    )


def delete_at_once(job: Job, pod: str) -> None:
    """Deletes a pod from the API at once; its containers get no more than the kubelet's least time to end, about two seconds."""
    job.cluster.kubectl("-n", job.namespace, "delete", "pod", pod, "--grace-period=0", "--force")


@contextmanager
def api_server_frozen(job: Job) -> Iterator[None]:
    """Freezes the API server for the block, and until the job's driver and the operator have noticed.

    The driver says so. The operator ends, since it can't renew its lease: its next container has another log file.
    """
    driver = job.pods()[job.pod("driver")]
    (operator,) = (job.cluster.api.get(f"/api/v1/namespaces/{SYSTEM}/pods") or {})["items"]
    complaints, containers = _complaints(job, driver), _logs(job, operator)
    control_plane = job.cluster.control_plane
    control_plane.signal("kube-apiserver", signal.SIGSTOP)
    try:
        yield
        eventually(
            lambda: _complaints(job, driver),
            lambda now: any(count > complaints.get(log, 0) for log, count in now.items()),
        )
        eventually(lambda: _logs(job, operator), lambda now: now - containers)
    finally:
        control_plane.signal("kube-apiserver", signal.SIGCONT)


def _complaints(job: Job, driver: Object) -> dict[Path, int]:
    """Counts in each log how often a driver has said that the API server doesn't answer; the kubelet removes old logs."""
    return {log: log.read_text(errors="replace").count("the API server doesn't serve") for log in _logs(job, driver)}


def _logs(job: Job, pod: Object) -> set[Path]:
    """Lists the log files of a pod's containers on its node: one for each start whose log the kubelet has not removed."""
    metadata = pod["metadata"]
    root = job.cluster.node(pod["spec"]["nodeName"]).layout.pod_logs
    return set(root.glob(f"{metadata['namespace']}_{metadata['name']}_{metadata['uid']}/*/*.log"))


def resumes_after(job: Job, harm: Callable[[], None]) -> None:
    """Does the harm, and waits until a new incarnation is at least two steps beyond the step before the harm."""
    before = job.status()["training"]
    harm()
    job.wait(
        "a new incarnation",
        lambda: job.status()["training"]["incarnation"],
        lambda incarnation: incarnation > before["incarnation"],
    )
    job.wait_for_step(before["step"] + 2)
