"""Builds what gives access: the driver's account at the API server, and the Secret with Ray's token. Pure."""

from __future__ import annotations

from longboat_crds.base import GROUP
from longboat_crds.runtime import RLRuntimeSpec
from longboat_operator.model import Object
from longboat_operator.pods.names import JobRef

TOKEN_KEY = "token"

_RBAC = "rbac.authorization.k8s.io"


def driver_account(job: JobRef, runtime: RLRuntimeSpec | None = None) -> Object:
    """Builds the driver's account; its token goes only where a pod asks for it.

    Its annotations are the runtime template's alone: they may bind it to a cloud identity, which a job must not choose. Pull Secrets are
    left out: they may be those of another account.
    """
    metadata = job.metadata(job.driver_account)
    metadata.pop("annotations", None)
    settings = runtime and runtime.driver_service_account
    annotations = {**((runtime and runtime.annotations) or {}), **((settings and settings.annotations) or {})}
    return {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": metadata | {"annotations": annotations} if annotations else metadata,
        "automountServiceAccountToken": False,
    }


def driver_role(job: JobRef) -> Object:
    """Lets the driver read its own job and write its status; an admission policy limits that to the driver's fields.

    No list: the driver gets its job by name, and watches that name alone.
    """
    return {
        "apiVersion": f"{_RBAC}/v1",
        "kind": "Role",
        "metadata": job.metadata(job.driver_account),
        "rules": [
            {"apiGroups": [GROUP], "resources": ["rljobs"], "resourceNames": [job.name], "verbs": ["get", "watch"]},
            {"apiGroups": [GROUP], "resources": ["rljobs/status"], "resourceNames": [job.name], "verbs": ["patch"]},
        ],
    }


def driver_role_binding(job: JobRef, account: str | None = None) -> Object:
    """Gives the role to the account of the driver's pods: the job's own, unless the runtime template names another."""
    return {
        "apiVersion": f"{_RBAC}/v1",
        "kind": "RoleBinding",
        "metadata": job.metadata(job.driver_account),
        "roleRef": {"apiGroup": _RBAC, "kind": "Role", "name": job.driver_account},
        "subjects": [{"kind": "ServiceAccount", "name": account or job.driver_account, "namespace": job.namespace}],
    }


def ray_token(job: JobRef, name: str) -> Object:
    """Builds the Secret with Ray's token: immutable, without its value (64 hexadecimal digits), which its creator generates."""
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": job.metadata(name),
        "type": "Opaque",
        "immutable": True,
    }
