"""Rollout, trainer and reward pods, each with an agent that joins the Ray head. Pure."""

from __future__ import annotations

from typing import Any

from longboat_crds.base import Role
from longboat_crds.job import RLJobSpec
from longboat_crds.rewards import rewards_of
from longboat_crds.runtime import RLRuntimeSpec
from longboat_operator.pods import container as parts
from longboat_operator.pods.driver import checkpoint_mounts, checkpoint_volumes
from longboat_operator.pods.names import JobRef
from longboat_operator.pods.volumes import scratch

GRADERS = "graders"


def worker(
    role: Role, job: JobRef, command: list[str], offer: list[str], mounts: list[dict[str, Any]]
) -> dict[str, Any]:
    """Builds the container that joins Ray; `offer` are the agent's options for what it offers there."""
    args = ["agent", str(role), "--head", job.head_address, *offer]
    joined = parts.container(str(role), command, args, mounts=mounts)
    joined["ports"] = [{"name": "health", "containerPort": parts.AGENT_PORT}]
    return joined | parts.agent_probes(parts.AGENT_PORT)


def rollout_pod_spec(job: JobRef, spec: RLJobSpec, command: list[str]) -> dict[str, Any]:
    """Builds the part that only a rollout pod's spec has.

    An environment variable tells its container its CPU request, for engines on CPUs.
    """
    rollout = worker(Role.ROLLOUT, job, command, ["--devices", str(spec.rollout.devices_per_pod)], [])
    rollout["env"].append(parts.resource_env("CPU_REQUEST_MILLICORES", "requests.cpu", "1m"))
    return {"containers": [rollout]}


def trainer_pod_spec(job: JobRef, spec: RLJobSpec, command: list[str]) -> dict[str, Any]:
    """Builds the part that only a trainer pod's spec has: a rank for each device, and the checkpoint volume."""
    offer = ["--slots", str(spec.trainer.devices_per_pod)]
    return {
        "containers": [worker(Role.TRAINER, job, command, offer, checkpoint_mounts(spec.checkpoint))],
        "volumes": checkpoint_volumes(job, spec.checkpoint),
    }


def reward_pod_spec(job: JobRef, spec: RLJobSpec, runtime: RLRuntimeSpec, pool: str) -> dict[str, Any]:
    """Builds the part that only the spec of a reward pod of this pool has. Its graders see only the ConfigMaps of the pool's own rewards.

    Graded code is hostile: its container has another user, no Ray token, and directories of its own; only the socket's
    directory is shared. It has no probe: the reward agent is ready only while the socket answers.
    """
    per_pod = next(named.graders_per_pod for named in spec.reward_pools if named.name == pool)
    offer = ["--pool", pool, "--slots", str(per_pod), "--socket", parts.REWARD_SOCKET]
    reward = worker(Role.REWARD, job, runtime.command, offer, [parts.mount("run", "/run/longboat")])
    rewards = rewards_of(spec.rewards, pool).values()
    files = sorted({reward.config_map.name for reward in rewards if reward.config_map})
    graders = parts.container(
        GRADERS,
        ["longboat"] if runtime.graders_image else runtime.command,
        ["graders", "--socket", parts.REWARD_SOCKET, "--processes", str(per_pod)],
        mounts=[
            parts.mount("run", "/run/longboat"),
            *(
                parts.mount(f"reward-files-{i}", f"/etc/longboat/rewards/{name}", read_only=True)
                for i, name in enumerate(files)
            ),
        ],
        ray=False,
        own="graders-",
    )
    if runtime.graders_image:
        graders["image"] = runtime.graders_image
    graders["securityContext"] |= {"runAsUser": parts.GRADER_USER, "runAsGroup": parts.GRADER_USER}
    return {
        "containers": [reward, graders],
        "volumes": [
            scratch("run"),
            scratch("graders-tmp"),
            scratch("graders-home"),
            *({"name": f"reward-files-{i}", "configMap": {"name": name}} for i, name in enumerate(files)),
        ],
    }
