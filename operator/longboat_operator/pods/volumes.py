"""Volumes of a job's pods. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def scratch(name: str) -> dict[str, Any]:
    """Builds a volume that is an empty directory and lives as long as the pod."""
    return {"name": name, "emptyDir": {}}


def claim(name: str, claim_name: str, *, read_only: bool = False) -> dict[str, Any]:
    """Builds the volume of a persistent volume claim."""
    source: dict[str, Any] = {"claimName": claim_name}
    return {"name": name, "persistentVolumeClaim": source | {"readOnly": True} if read_only else source}


def ray_volumes(token_secret: str, shared_memory: str) -> list[dict[str, Any]]:
    """Lists the volumes that every Ray node needs.

    The object store's files are in `shm`, which counts towards the pod's memory.
    """
    return [
        scratch("tmp"),
        scratch("home"),
        {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": shared_memory}},
        {"name": "ray-token", "secret": {"secretName": token_secret, "defaultMode": 0o440}},
    ]


def api_access() -> dict[str, Any]:
    """Builds the volume with a token of the pod's service account, for the one container that mounts it."""
    return {
        "name": "api-access",
        "projected": {
            "defaultMode": 0o440,
            "sources": [
                {"serviceAccountToken": {"path": "token", "expirationSeconds": 3607}},
                {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
                {"downwardAPI": {"items": [{"path": "namespace", "fieldRef": {"fieldPath": "metadata.namespace"}}]}},
            ],
        },
    }


def optional_secrets(name: str, sources: Sequence[tuple[str, Sequence[str]]]) -> dict[str, Any]:
    """Builds a volume with some keys of some Secrets, each as a file named by the key. What isn't there is left out."""
    return {
        "name": name,
        "projected": {
            "defaultMode": 0o440,
            "sources": [
                {"secret": {"name": secret, "optional": True, "items": [{"key": key, "path": key} for key in keys]}}
                for secret, keys in sources
            ],
        },
    }
