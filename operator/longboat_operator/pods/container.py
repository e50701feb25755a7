"""Parts that the containers of all roles share. Pure."""

from __future__ import annotations

from typing import Any

HOME = "/home/longboat"
# Users of the images (docs/images.md). All but that of graders and environments have USER's group, so that they can share volumes.
USER = 10001
GRADER_USER = 10002
HEAD_USER = 10003

AGENT_PORT = 6390
HEAD_AGENT_PORT = 6391
METRICS_PORT = 6392
RAY_PORT = 6379
# Of a Ray node's managers (`agent.ray_command.RayPorts`) and, by Ray's defaults, of its workers, drivers included.
RAY_MANAGER_PORTS = (6380, 6381)
RAY_WORKER_PORTS = (10002, 19999)

RAY_TOKEN_DIRECTORY = "/etc/longboat/ray-token"
# Sockets lie here, in a volume that the two containers of a pod with user code share.
RUN = "/run/longboat"
REWARD_SOCKET = f"{RUN}/graders.sock"
ENVIRONMENT_SOCKET = f"{RUN}/environments.sock"
# ConfigMaps with the functions of rewards and of environments, each as a directory.
REWARD_FILES = "/etc/longboat/rewards"
ENVIRONMENT_FILES = "/etc/longboat/environments"

# Importing torch and vLLM from a cold network file system takes minutes; the job's start deadline catches a hung agent.
STARTUP_SECONDS = 900


def field_env(name: str, path: str) -> dict[str, Any]:
    """Returns an environment variable with a field of the pod, from the downward API."""
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}


def resource_env(name: str, resource: str, divisor: str) -> dict[str, Any]:
    """Returns an environment variable with one of the container's own resources, from the downward API; 0 if a request isn't set."""
    return {"name": name, "valueFrom": {"resourceFieldRef": {"resource": resource, "divisor": divisor}}}


def environment(*, ray: bool) -> list[dict[str, Any]]:
    """Lists the variables of all containers (HOME, pod and node) and, for one that uses Ray, where Ray's token is (never the token)."""
    env = [
        {"name": "HOME", "value": HOME},
        field_env("POD_NAME", "metadata.name"),
        field_env("POD_NAMESPACE", "metadata.namespace"),
        field_env("POD_IP", "status.podIP"),
        field_env("NODE_NAME", "spec.nodeName"),
    ]
    if ray:
        env.append({"name": "RAY_AUTH_MODE", "value": "token"})
        env.append({"name": "RAY_AUTH_TOKEN_PATH", "value": f"{RAY_TOKEN_DIRECTORY}/token"})
    return env


def mount(name: str, path: str, *, read_only: bool = False) -> dict[str, Any]:
    """Returns a volume mount."""
    mounted: dict[str, Any] = {"name": name, "mountPath": path}
    return mounted | {"readOnly": True} if read_only else mounted


def container(
    name: str, command: list[str], args: list[str], *, mounts: list[dict[str, Any]], ray: bool = True, own: str = ""
) -> dict[str, Any]:
    """Returns a container without image, probes and resources.

    `own` prefixes the names of the volumes at /tmp and HOME, for a container that shares them with no other of its pod.
    """
    mounts = [
        mount(f"{own}tmp", "/tmp"),  # noqa: S108
        mount(f"{own}home", HOME),
        *(_RAY_MOUNTS if ray else []),
        *mounts,
    ]
    return {
        "name": name,
        "command": list(command),
        "args": args,
        "env": environment(ray=ray),
        "volumeMounts": mounts,
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }


_RAY_MOUNTS = [
    mount("shm", "/dev/shm"),  # noqa: S108
    mount("ray-token", RAY_TOKEN_DIRECTORY, read_only=True),
]


def agent_probes(port: int) -> dict[str, Any]:
    """Returns the probes of a container that runs an agent: started and alive by /healthz, ready by /readyz."""
    return {
        "startupProbe": {
            "httpGet": {"path": "/healthz", "port": port},
            "periodSeconds": 1,
            "failureThreshold": STARTUP_SECONDS,
        },
        "livenessProbe": {
            "httpGet": {"path": "/healthz", "port": port},
            "periodSeconds": 10,
            "timeoutSeconds": 5,
            "failureThreshold": 6,
        },
        "readinessProbe": {
            "httpGet": {"path": "/readyz", "port": port},
            "periodSeconds": 2,
            "timeoutSeconds": 5,
            "failureThreshold": 3,
        },
    }
