"""The driver pod: the Ray head as a native sidecar, and the driver. Pure."""

from __future__ import annotations

from typing import Any

from longboat_crds.checkpoint import CheckpointSpec
from longboat_crds.job import RLJobSpec
from longboat_crds.tracking import MLFLOW_KEYS, WANDB_KEYS, TrackingSpec
from longboat_operator.pods import container as parts
from longboat_operator.pods.names import JobRef
from longboat_operator.pods.volumes import api_access, claim, optional_secrets, scratch

RAY_HEAD = "ray-head"
# Where Ray keeps its sessions: their sockets, which the driver connects to, and their logs.
RAY_SESSIONS = "/tmp/ray"  # noqa: S108
# Where the driver finds the credentials of trackers.
TRACKING_DIRECTORY = "/etc/longboat/tracking"
# Where the driver finds the ConfigMaps of the dataset, each under its name.
DATASET_DIRECTORY = "/etc/longboat/dataset"
API_ACCESS_DIRECTORY = "/var/run/secrets/kubernetes.io/serviceaccount"


def checkpoint_volumes(job: JobRef, checkpoint: CheckpointSpec) -> list[dict[str, Any]]:
    """Builds the volumes of the job's claim and, if it resumes from another's, of that one."""
    volumes = [claim("checkpoint", checkpoint.claim_name or job.checkpoint_claim)]
    if checkpoint.resume_from:
        volumes.append(claim("resume", checkpoint.resume_from.claim_name, read_only=True))
    return volumes


def checkpoint_mounts(checkpoint: CheckpointSpec) -> list[dict[str, Any]]:
    """Builds the mounts of the checkpoint volumes: the job's own and, read-only, the one that it resumes from, if any."""
    mounts = [parts.mount("checkpoint", "/checkpoint")]
    if checkpoint.resume_from:
        mounts.append(parts.mount("resume", "/resume", read_only=True))
    return mounts


def tracker_secrets(tracking: TrackingSpec | None) -> list[dict[str, Any]]:
    """Returns a list with the volume of the trackers' credentials, a file for each key; empty if no tracker names a Secret.

    A Secret that isn't there doesn't keep the pod from starting: the driver reports it if it needs it, and sees it once it is created.
    """
    wandb, mlflow = (tracking.weights_and_biases, tracking.mlflow) if tracking else (None, None)
    named = ((wandb and wandb.secret, WANDB_KEYS), (mlflow and mlflow.secret, MLFLOW_KEYS))
    sources = [(secret.name, keys) for secret, keys in named if secret]
    return [optional_secrets("tracking", sources)] if sources else []


def driver_pod_spec(job: JobRef, spec: RLJobSpec, command: list[str]) -> dict[str, Any]:
    """Builds the part of the pod spec that only the driver has.

    The head is a sidecar, so a failing driver restarts without it. They share the process namespace: Ray finds the
    local raylet by its process. Whoever has the Ray token can run code on the head, so the head runs as another user: the
    kernel lets it read neither the driver's environment nor, through /proc, its files, of which one is the API token.
    """
    sessions, tracking = parts.mount("ray", RAY_SESSIONS), tracker_secrets(spec.tracking)
    dataset = spec.dataset
    templates = [dataset.chat_template, dataset.evaluation.chat_template if dataset.evaluation else None]
    named = dict.fromkeys(template.config_map.name for template in templates if template and template.config_map)
    # Pods of jobs with one ConfigMap have had this name from the start.
    files = {name: f"dataset-files-{number}" if number else "dataset-files" for number, name in enumerate(named)}
    probes = parts.agent_probes(parts.HEAD_AGENT_PORT)
    # The driver may start only when the head serves, so the start probe asks for readiness.
    probes["startupProbe"]["httpGet"]["path"] = "/readyz"
    head = parts.container(RAY_HEAD, command, ["agent", "head"], mounts=[sessions], own="head-")
    head["securityContext"] |= {"runAsUser": parts.HEAD_USER}
    head |= {
        "restartPolicy": "Always",
        "ports": [
            {"name": "ray", "containerPort": parts.RAY_PORT},
            {"name": "head-health", "containerPort": parts.HEAD_AGENT_PORT},
        ],
    } | probes
    driver = parts.container(
        "driver",
        command,
        ["agent", "driver", "--job", job.name, "--namespace", job.namespace],
        mounts=[
            sessions,
            *checkpoint_mounts(spec.checkpoint),
            parts.mount("api-access", API_ACCESS_DIRECTORY, read_only=True),
            *(parts.mount(volume["name"], TRACKING_DIRECTORY, read_only=True) for volume in tracking),
            *(parts.mount(volume, f"{DATASET_DIRECTORY}/{name}", read_only=True) for name, volume in files.items()),
        ],
    )
    driver |= {
        "ports": [
            {"name": "health", "containerPort": parts.AGENT_PORT},
            {"name": "metrics", "containerPort": parts.METRICS_PORT},
        ]
    } | parts.agent_probes(parts.AGENT_PORT)
    return {
        "serviceAccountName": job.driver_account,
        "shareProcessNamespace": True,
        "initContainers": [head],
        "containers": [driver],
        "volumes": [
            scratch("ray"),
            scratch("head-tmp"),
            scratch("head-home"),
            *checkpoint_volumes(job, spec.checkpoint),
            api_access(),
            *tracking,
            *({"name": volume, "configMap": {"name": name}} for name, volume in files.items()),
        ],
    }
