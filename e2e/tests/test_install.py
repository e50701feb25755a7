"""Pages that say how Longboat is installed can be followed, on an empty cluster with a registry."""

import os
import shutil
import tomllib
from pathlib import Path

import pytest

from e2e import host_runtime, installation, pages, registry, volumes
from e2e.cluster import cluster as clusters
from e2e.cluster.binaries import KUBEBOX
from e2e.cluster.cluster import Cluster
from e2e.cluster.images import builder, catalogue
from e2e.cluster.shell import run
from e2e.host_runtime import ENVIRONMENT, REPOSITORY

# The pages themselves may wait for nearly three hours.
pytestmark = [pytest.mark.cluster, pytest.mark.extended, pytest.mark.timeout(4 * 3600)]

EXPORT = REPOSITORY / "build" / "countdown"


def environment(cluster: Cluster, address: str, folder: Path) -> dict[str, str]:
    """Returns what a reader's shell has: kubectl, Helm, a registry, and a buildah that builds operator and graders on this machine's base."""
    for name in ("kubectl", "helm"):
        (folder / name).write_text(f'#!/bin/sh\nexec {KUBEBOX.path} {name} "$@"\n')
        (folder / name).chmod(0o755)
    base = catalogue.BASE.build()
    builder.ensure(base.ref, base.archive)
    made = {
        **cluster.environment,
        **builder.variables(folder, address),
        **installation.helm_folders(),
        "PATH": f"{folder}:{os.environ['PATH']}",
        "REGISTRY": address,
        "BUILD": "buildah",
        "IMAGE": "longboat-operator longboat-graders",
        "ARGS": " ".join([*builder.options(), f"--build-arg=BASE_IMAGE={base.ref}"]),
    }
    return {name: value for name, value in made.items() if name not in ("MAKEFLAGS", "MAKEOVERRIDES", "MFLAGS")}


def push_small_runtime(ref: str, folder: Path, environment: dict[str, str]) -> None:
    """Pushes an image that finds Python where `host_runtime.policy` mounts it: the full one would take gigabytes."""
    host = catalogue.find("runtime-host").build()
    builder.ensure(host.ref, host.archive)
    dockerfile = folder / "Dockerfile"
    dockerfile.write_text(f"FROM {host.ref}\nENV PATH={ENVIRONMENT}/bin:$PATH PYTHONDONTWRITEBYTECODE=1\n")
    builder.build(ref, dockerfile, folder, folder / "build.log")
    try:
        run(["buildah", "push", ref], env=environment)
    finally:
        builder.remove(ref)


def test_pages_lead_to_a_trained_model_and_back_to_an_empty_cluster(tmp_path: Path) -> None:
    version = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["version"]
    shutil.rmtree(EXPORT, ignore_errors=True)
    with (
        clusters.own("install", nodes=2) as cluster,
        registry.serve(cluster.layout.root / "registry", cluster.network.host) as address,
    ):
        cluster.trust_registry(address)
        volumes.provide(cluster)
        volumes.apply(cluster, host_runtime.policy("quickstart"))
        shell = environment(cluster, address, tmp_path)
        push_small_runtime(f"{address}/longboat-runtime:{version}", tmp_path, shell)
        try:
            pages.follow("docs/install.md", shell, tmp_path / "install.log")
            assert (EXPORT / "config.json").exists()
            assert cluster.kubectl("get", "crds", "-o", "name") == ""
            for page in ("charts/longboat/README.md", "docs/images.md", "README.md"):
                pages.follow(page, shell, tmp_path / "page.log")
        finally:
            for image in ("operator", "graders"):
                builder.remove(f"{address}/longboat-{image}:{version}")
        assert "countdown" in cluster.kubectl("get", "rljobs")
