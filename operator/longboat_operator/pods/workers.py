"""Rollout, trainer, reward and environment pods, each with an agent that joins the Ray head. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from longboat_crds.base import Role
from longboat_crds.environments import EnvironmentSpec, environments_of
from longboat_crds.job import RLJobSpec
from longboat_crds.rewards import RewardSpec, rewards_of
from longboat_crds.runtime import RLRuntimeSpec
from longboat_operator.pods import container as parts
from longboat_operator.pods.driver import checkpoint_mounts, checkpoint_volumes
from longboat_operator.pods.names import JobRef
from longboat_operator.pods.volumes import scratch

# Containers in which the user's own code runs.
GRADERS = "graders"
ENVIRONMENT = "environment"


def worker(
    role: Role, job: JobRef, command: list[str], offer: list[str], mounts: list[dict[str, Any]], name: str | None = None
) -> dict[str, Any]:
    """Builds the container that joins Ray, named after the role by default; `offer` are the agent's options for what it offers there."""
    args = ["agent", str(role), "--head", job.head_address, *offer]
    joined = parts.container(name or str(role), command, args, mounts=mounts)
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
    """Builds the part that only the spec of a reward pod of this pool has. Its graders see only the ConfigMaps of the pool's own rewards."""
    at_once = next(named.graders_per_pod for named in spec.reward_pools if named.name == pool)
    return _pod_with_user_code(
        job,
        runtime,
        Role.REWARD,
        pool,
        at_once=at_once,
        code=["graders", "--socket", parts.REWARD_SOCKET, "--processes", str(at_once)],
        containers=("reward", GRADERS),
        socket=parts.REWARD_SOCKET,
        functions=rewards_of(spec.rewards, pool).values(),
        files_path=parts.REWARD_FILES,
    )


def environment_pod_spec(job: JobRef, spec: RLJobSpec, runtime: RLRuntimeSpec, pool: str) -> dict[str, Any]:
    """Builds the part that only the spec of an environment pod of this pool has.

    The container `environment` sees only the ConfigMaps of the pool's own environments. Episodes reach the model through the container
    `episodes`, with which they share the pod's network.
    """
    return _pod_with_user_code(
        job,
        runtime,
        Role.ENVIRONMENT,
        pool,
        at_once=next(named.episodes_per_pod for named in spec.environment_pools or () if named.name == pool),
        code=["environments", "--socket", parts.ENVIRONMENT_SOCKET],
        containers=("episodes", ENVIRONMENT),
        socket=parts.ENVIRONMENT_SOCKET,
        functions=environments_of(spec.environments, pool).values(),
        files_path=parts.ENVIRONMENT_FILES,
    )


def _pod_with_user_code(
    job: JobRef,
    runtime: RLRuntimeSpec,
    role: Role,
    pool: str,
    *,
    at_once: int,
    code: list[str],
    containers: tuple[str, str],
    socket: str,
    functions: Iterable[RewardSpec | EnvironmentSpec],
    files_path: str,
) -> dict[str, Any]:
    """Builds the part of a pod's spec that has a container for Ray and one for the user's code, started by the arguments `code`.

    At most `at_once` grades or episodes run there. ConfigMaps of the `functions` are below `files_path`. Graded code is hostile: the
    container has another user, no Ray token, and directories of its own; only the directory of the `socket` is shared. It has no probe: the agent is
    ready only while the socket answers.
    """
    with_ray, with_code = containers
    offer = ["--pool", pool, "--slots", str(at_once), "--socket", socket]
    joined = worker(role, job, runtime.command, offer, [parts.mount("run", parts.RUN)], name=with_ray)
    files = sorted({function.config_map.name for function in functions if function.config_map})
    running = parts.container(
        with_code,
        ["longboat"] if runtime.graders_image else runtime.command,
        code,
        mounts=[
            parts.mount("run", parts.RUN),
            *(parts.mount(f"{role}-files-{i}", f"{files_path}/{name}", read_only=True) for i, name in enumerate(files)),
        ],
        ray=False,
        own=f"{with_code}-",
    )
    if runtime.graders_image:
        running["image"] = runtime.graders_image
    running["securityContext"] |= {"runAsUser": parts.GRADER_USER, "runAsGroup": parts.GRADER_USER}
    return {
        "containers": [joined, running],
        "volumes": [
            scratch("run"),
            scratch(f"{with_code}-tmp"),
            scratch(f"{with_code}-home"),
            *({"name": f"{role}-files-{i}", "configMap": {"name": name}} for i, name in enumerate(files)),
        ],
    }
