"""What machines do to pods."""

import signal
from collections.abc import Callable

from e2e.cluster.errors import CommandError
from e2e.jobs import Job

KILLED = 128 + signal.SIGKILL


def signal_process(job: Job, pod: str, container: str, word: str) -> None:
    """SIGKILL every process of a container whose command line holds `word`.

    The container may end with its process, and the shell that sent the signal with the container.
    """
    script = (
        f'for p in /proc/[0-9]*; do if tr "\\0" " " < $p/cmdline 2>/dev/null | grep -q "{word}"; '
        "then n=${p#/proc/}; [ $n = $$ ] || kill -9 $n; fi; done; true"
    )
    try:
        job.exec(pod, container, "sh", "-c", script)
    except CommandError as error:
        if error.status != KILLED:
            raise


def delete_at_once(job: Job, pod: str) -> None:
    """Delete a pod whose containers get no more time than every kubelet gives them: about two seconds."""
    job.cluster.kubectl("-n", job.namespace, "delete", "pod", pod, "--grace-period=0", "--force")


def resumes_after(job: Job, harm: Callable[[], None]) -> None:
    """A new incarnation goes on at least where the old one's last step was."""
    before = job.status()["training"]
    harm()
    job.wait("a new incarnation", lambda: job.status()["training"]["incarnation"] > before["incarnation"], 180)
    job.wait_for_step(before["step"] + 2)
