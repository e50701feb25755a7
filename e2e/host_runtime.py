"""A runtime template whose pods run this machine's Python environment, mounted read-only through claims.

The full runtime image holds several gigabytes; mounting what `make setup` installed keeps a test run short. The pods are
otherwise what a platform team would run: non-root, read-only root file system, no capabilities.

/dev/shm keeps the operator's 256 MiB, which leave Ray's object store 128 MiB: the tests' models, of a few megabytes, fit twice.
"""

import os
import sys
from pathlib import Path
from typing import Any

from e2e.volumes import mirror

REPOSITORY = Path(__file__).resolve().parent.parent
ENVIRONMENT = Path(sys.prefix)
PYTHON = Path(sys.base_prefix)
DATA = "/data"
HOSTNAME = "kubernetes.io/hostname"
"""Label of a node with its name."""

CONTAINERS = {
    "driver": ("driver", "ray-head"),
    "rollout": ("rollout",),
    "reward": ("reward", "graders"),
    "trainer": ("trainer",),
    "environment": ("episodes", "environment"),
}
"""Role → its containers."""

SIDECARS = {"ray-head"}

CPU_REQUESTS = {
    "driver": "100m",
    "ray-head": "50m",
    "rollout": "300m",
    "reward": "50m",
    "graders": "50m",
    "trainer": "300m",
    "episodes": "50m",
    "environment": "50m",
    "utility": "300m",
}
MEMORY_LIMITS = {
    "driver": "2Gi",
    "ray-head": "3Gi",
    "rollout": "6Gi",
    "reward": "2Gi",
    "graders": "1Gi",
    "trainer": "4Gi",
    "episodes": "2Gi",
    "environment": "2Gi",
    "utility": "3Gi",
}


def claims(namespace: str, data: Path) -> list[dict[str, Any]]:
    """Returns the claims that the template's pods mount in `namespace`, and their volumes.

    Makes `data` and a cache beside it, which any user may write.
    """
    cache = data.parent / f"{data.name}-cache"
    for folder in (data, cache):
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o777)
    return [
        *mirror(namespace, "longboat-source", REPOSITORY),
        *([] if ENVIRONMENT.is_relative_to(REPOSITORY) else mirror(namespace, "longboat-environment", ENVIRONMENT)),
        *mirror(namespace, "longboat-python", PYTHON),
        *mirror(namespace, "longboat-cache", cache, read_only=False),
        *mirror(namespace, "longboat-data", data, read_only=False),
    ]


def template(image: str, name: str = "host", graders_image: str = "") -> dict[str, Any]:
    """Returns a ClusterRLRuntime for pods of this image. A `graders_image` has an environment of its own, and sees only the data."""
    roles = {role: {"template": {"spec": _pod_spec(role)}} for role in CONTAINERS}
    images = {"image": image}
    if graders_image:
        images["gradersImage"] = graders_image
        for role in ("reward", "environment"):
            with_code = roles[role]["template"]["spec"]["containers"][1]
            with_code["volumeMounts"] = [mount for mount in with_code["volumeMounts"] if mount["mountPath"] == DATA]
    return {
        "apiVersion": "longboat.dev/v1alpha1",
        "kind": "ClusterRLRuntime",
        "metadata": {"name": name},
        "spec": {**images, "command": [str(ENVIRONMENT / "bin" / "longboat")], "roles": roles},
    }


def utility_pod(image: str, command: list[str]) -> dict[str, Any]:
    """Returns the spec of a pod that runs one command of the environment with the data at /data."""
    return {
        "restartPolicy": "Never",
        "securityContext": {"runAsNonRoot": True, "runAsUser": 10001, "seccompProfile": {"type": "RuntimeDefault"}},
        "volumes": [*_volumes(), {"name": "tmp", "emptyDir": {}}],
        "containers": [
            {
                **_container("utility"),
                "image": image,
                "command": command,
                "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
                "volumeMounts": [*_volume_mounts("utility"), {"name": "tmp", "mountPath": "/tmp"}],
            }
        ],
    }


def policy(namespace: str) -> list[dict[str, Any]]:
    """Returns a policy that mounts this machine's Python environment in every pod of a namespace, and its binding.

    Pods run as if their image held it, whoever makes them.
    """
    paths = {name: path for name, path in _mounts() if name not in _WRITABLE}
    volumes = ", ".join(
        f"Object.spec.volumes{{name: '{name}', hostPath: Object.spec.volumes.hostPath{{path: '{path}'}}}}"
        for name, path in paths.items()
    )

    def mounted(kind: str) -> str:
        mounts = ", ".join(
            f"Object.spec.{kind}.volumeMounts{{name: '{name}', mountPath: '{path}', readOnly: true}}"
            for name, path in paths.items()
        )
        return f"object.spec.?{kind}.orValue([]).map(c, Object.spec.{kind}{{name: c.name, volumeMounts: [{mounts}]}})"

    lists = [f"{kind}: {mounted(kind)}" for kind in ("containers", "initContainers")]
    expression = f"Object{{spec: Object.spec{{volumes: [{volumes}], {', '.join(lists)}}}}}"
    pods = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}
    name = f"{namespace}-environment"
    spec = {
        "matchConstraints": {
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}},
            "resourceRules": [pods],
        },
        "failurePolicy": "Fail",
        "reinvocationPolicy": "Never",
        "mutations": [{"patchType": "ApplyConfiguration", "applyConfiguration": {"expression": expression}}],
    }
    kinds = {"MutatingAdmissionPolicy": spec, "MutatingAdmissionPolicyBinding": {"policyName": name}}
    version = "admissionregistration.k8s.io/v1"
    return [
        {"apiVersion": version, "kind": kind, "metadata": {"name": name}, "spec": body} for kind, body in kinds.items()
    ]


def _pod_spec(role: str) -> dict[str, Any]:
    names = CONTAINERS[role]
    spec: dict[str, Any] = {
        "terminationGracePeriodSeconds": 10,
        "volumes": _volumes(),
        "containers": [_container(name) for name in names if name not in SIDECARS],
    }
    sidecars = [_container(name) for name in names if name in SIDECARS]
    return {**spec, "initContainers": sidecars} if sidecars else spec


_WRITABLE = {"longboat-cache", "longboat-data"}


def _volumes() -> list[dict[str, Any]]:
    return [
        {"name": claim, "persistentVolumeClaim": {"claimName": claim, "readOnly": claim not in _WRITABLE}}
        for claim, _ in _mounts()
    ]


def _volume_mounts(container: str) -> list[dict[str, Any]]:
    """Lists the mounts of a container: only `utility` writes data and only `rollout` the cache."""
    writes = {"utility": "longboat-data", "rollout": "longboat-cache"}.get(container)
    return [{"name": claim, "mountPath": path, "readOnly": claim != writes} for claim, path in _mounts()]


def _mounts() -> list[tuple[str, str]]:
    mounts = [("longboat-source", str(REPOSITORY)), ("longboat-python", str(PYTHON)), ("longboat-data", DATA)]
    if not ENVIRONMENT.is_relative_to(REPOSITORY):
        mounts.append(("longboat-environment", str(ENVIRONMENT)))
    return [*mounts, ("longboat-cache", "/cache")]


def _container(name: str) -> dict[str, Any]:
    limits = {"cpu": str(os.cpu_count() or 1), "memory": MEMORY_LIMITS[name]}
    return {
        "name": name,
        "imagePullPolicy": "Never",
        "env": [
            {"name": "PYTHONDONTWRITEBYTECODE", "value": "1"},
            {"name": "VLLM_CACHE_ROOT", "value": "/cache/vllm"},
        ],
        "resources": {"requests": {"cpu": CPU_REQUESTS[name], "memory": "128Mi"}, "limits": limits},
        "volumeMounts": _volume_mounts(name),
    }
