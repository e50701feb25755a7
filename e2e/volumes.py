"""Volumes of the test cluster: a default StorageClass served by directories of this machine.

Every node of the cluster runs on this machine, so a directory is a true ReadWriteMany volume. The volumes are made ahead,
writable for every user (a hostPath ignores fsGroup), and go with the cluster.
"""

import json
from pathlib import Path
from typing import Any

from e2e.cluster.cluster import Cluster
from e2e.cluster.shell import run

STORAGE_CLASS = "host"


def provide(cluster: Cluster, count: int = 96, size: str = "10Gi") -> None:
    """Makes the StorageClass and `count` volumes of `size`: new ones are empty, those that exist keep what they hold."""
    root = cluster.layout.root / "volumes"
    folders = [root / f"{number:02}" for number in range(count)]
    for folder in folders:
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o777)
    root.chmod(0o755)
    objects = [_storage_class(), *(_volume(f"host-{folder.name}", folder, size) for folder in folders)]
    apply(cluster, objects)


def apply(cluster: Cluster, objects: list[dict[str, Any]]) -> None:
    """Applies `objects`, server-side and forced."""
    text = json.dumps({"apiVersion": "v1", "kind": "List", "items": objects})
    cluster.kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", stdin=text)


def mirror(namespace: str, name: str, folder: Path, read_only: bool = True) -> list[dict[str, Any]]:
    """Returns a volume that shows `folder` of this machine, and a claim `name` in `namespace` to it.

    Pod Security `restricted` forbids hostPath in pods and allows claims.
    """
    mode = "ReadOnlyMany" if read_only else "ReadWriteMany"
    volume = _volume(f"{namespace}-{name}", folder, "100Gi", mode)
    volume["spec"]["storageClassName"] = ""
    volume["spec"]["claimRef"] = {"namespace": namespace, "name": name}
    claim = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "accessModes": [mode],
            "storageClassName": "",
            "volumeName": volume["metadata"]["name"],
            "resources": {"requests": {"storage": "100Gi"}},
        },
    }
    return [volume, claim]


def folder(cluster: Cluster, namespace: str, claim: str) -> Path:
    """Returns the directory of this machine behind a bound claim."""
    volume = cluster.kubectl("-n", namespace, "get", "pvc", claim, "-o", "jsonpath={.spec.volumeName}")
    return Path(cluster.kubectl("get", "pv", volume, "-o", "jsonpath={.spec.hostPath.path}"))


def in_memory(cluster: Cluster, namespace: str, name: str, mebibytes: int) -> list[dict[str, Any]]:
    """Mounts memory for a volume that really holds no more than `mebibytes`; returns it and its claim `name` in `namespace`.

    It goes with the cluster.
    """
    folder = cluster.layout.root / "small-volumes" / f"{namespace}-{name}"
    folder.mkdir(parents=True, exist_ok=True)
    _mount(cluster, f"size={mebibytes}m,mode=0777", folder)
    return mirror(namespace, name, folder, read_only=False)


def enlarge(cluster: Cluster, namespace: str, name: str, mebibytes: int) -> None:
    """Gives a volume of `in_memory` another size; what it holds stays."""
    _mount(cluster, f"remount,size={mebibytes}m", cluster.layout.root / "small-volumes" / f"{namespace}-{name}")


def _mount(cluster: Cluster, options: str, folder: Path) -> None:
    """Mounts a file system in memory, or changes a mounted one, where only the cluster's processes see it."""
    enter = ["nsenter", "--target", str(cluster.namespaces.pid), "--mount", "--"]
    run([*enter, "mount", "-t", "tmpfs", "-o", options, "tmpfs", folder])


def _storage_class() -> dict[str, Any]:
    return {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": {
            "name": STORAGE_CLASS,
            "annotations": {"storageclass.kubernetes.io/is-default-class": "true"},
        },
        "provisioner": "kubernetes.io/no-provisioner",
    }


def _volume(name: str, folder: Path, size: str, mode: str = "ReadWriteMany") -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": name},
        "spec": {
            "capacity": {"storage": size},
            "accessModes": [mode],
            "storageClassName": STORAGE_CLASS,
            "persistentVolumeReclaimPolicy": "Retain",
            "hostPath": {"path": str(folder), "type": "Directory"},
        },
    }
