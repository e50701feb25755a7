"""Runs `longboat samples` in a job's driver pod, which mounts the checkpoint claim, through the user's own kubectl."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

# As the operator makes them: labels and container of a driver pod, and where the claim is mounted in it.
_LABELS = "longboat.dev/job={job},longboat.dev/role=driver"
_CONTAINER, _CLAIM = "driver", "/checkpoint"
_NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")


def run_there(job: str, namespace: str | None, options: Sequence[str]) -> int:
    """Runs the command there with these options and returns its exit status.

    Raises ValueError, with a message for people, if no such pod can be found.
    """
    if not _NAME.fullmatch(job):
        raise ValueError(
            f"DIR {job}: no such directory; give the one that `longboat run` wrote, or the name of an RLJob"
        )
    if shutil.which("kubectl") is None:
        raise ValueError(
            f"DIR {job}: no such directory, and to ask an RLJob of that name kubectl has to be on the PATH"
        )
    kubectl = ["kubectl", *(["--namespace", namespace] if namespace else [])]
    pods = _get(kubectl, job, "pods", "--selector", _LABELS.format(job=job))["items"]
    pod = next((pod for pod in pods if _runs(pod)), None)
    if pod is None:
        raise ValueError(_nothing_runs(job, _get(kubectl, job, "rljobs.longboat.dev", job)))
    (container,) = (container for container in pod["spec"]["containers"] if container["name"] == _CONTAINER)
    terminal = [f"--terminal={shutil.get_terminal_size().columns}"] if sys.stdout.isatty() else []
    command = [*container["command"], "samples", _CLAIM, *options, *terminal]
    return subprocess.run(
        [*kubectl, "exec", pod["metadata"]["name"], "--container", _CONTAINER, "--", *command], check=False
    ).returncode


def _get(kubectl: list[str], job: str, *words: str) -> dict[str, Any]:
    done = subprocess.run([*kubectl, "get", *words, "--output", "json"], capture_output=True, text=True, check=False)
    if done.returncode:
        raise ValueError(f"JOB {job}: neither a directory here, nor can it be read as an RLJob: {done.stderr.strip()}")
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def _runs(pod: dict[str, Any]) -> bool:
    """Whether the pod's driver container runs (pure)."""
    containers = pod.get("status", {}).get("containerStatuses", [])
    return any(container["name"] == _CONTAINER and "running" in container.get("state", {}) for container in containers)


def _nothing_runs(job: str, job_object: dict[str, Any]) -> str:
    """Says what to do about a job without a running driver pod (pure)."""
    phase = job_object.get("status", {}).get("phase", "Pending")
    claim = job_object["spec"].get("checkpoint", {}).get("claimName", f"{job}-checkpoint")
    return (
        f"JOB {job}: no driver pod of it runs (phase {phase}). Its files are on the claim {claim}: mount that in a pod, and give "
        "`longboat samples` the directory there; docs/samples.md has such a pod."
    )
