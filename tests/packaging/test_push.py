"""`make push` builds images of the Dockerfile with the tool asked for, and pushes them tagged with the version."""

import os
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

from e2e.cluster.paths import REPOSITORY

VERSION = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["version"]


def push(tools: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Runs `make push` where a `docker` and a `buildah` print what they are asked for."""
    for name in ("docker", "buildah"):
        (tools / name).write_text('#!/bin/sh\necho "${0##*/} $@"\n')
        (tools / name).chmod(0o755)
    settings = [f"{name}={value}" for name, value in variables.items()]
    command = ["make", "--no-print-directory", "push", *settings]
    inherited = {name: os.environ[name] for name in ("HOME",) if name in os.environ}
    environment = {**inherited, "PATH": f"{tools}:/usr/bin:/bin"}
    return subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, check=False)


def test_operator_and_runtime_are_built_and_pushed_by_docker(tmp_path: Path) -> None:
    operator, runtime = (f"r.example/team/longboat-{name}:{VERSION}" for name in ("operator", "runtime"))
    assert push(tmp_path, REGISTRY="r.example/team").stdout.splitlines() == [
        f"docker build --target operator --tag {operator} .",
        f"docker push {operator}",
        f"docker build --target runtime --tag {runtime} .",
        f"docker push {runtime}",
    ]


def test_the_image_for_gpus_is_built_by_buildah_with_more_arguments(tmp_path: Path) -> None:
    image = f"r.example/longboat-runtime-gpu:{VERSION}"
    pushed = push(tmp_path, REGISTRY="r.example", BUILD="buildah", IMAGES="longboat-runtime-gpu", ARGS="--layers")
    assert pushed.stdout.splitlines() == [
        f"buildah build --target runtime --build-arg BACKEND=gpu --layers --tag {image} .",
        f"buildah push {image}",
    ]


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({}, "REGISTRY is missing"),
        ({"REGISTRY": "r.example", "BUILD": "podman"}, "BUILD is docker or buildah, not podman"),
        ({"REGISTRY": "r.example", "IMAGES": "longboat"}, "not longboat"),
    ],
    ids=["registry", "tool", "image"],
)
def test_what_it_cannot_do_is_said_in_one_line(tmp_path: Path, variables: dict[str, str], words: str) -> None:
    refused = push(tmp_path, **variables)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert words in refused.stderr
    assert len(refused.stderr.splitlines()) == 1


def test_a_missing_tool_and_a_failed_build_push_nothing(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    for name in ("make", "sh", "sed", "nproc", "expr"):
        (tmp_path / "bin" / name).symlink_to(shutil.which(name) or "")
    command = ["make", "push", "REGISTRY=r.example"]
    environment = {"PATH": str(tmp_path / "bin"), "HOME": str(tmp_path)}

    def run() -> subprocess.CompletedProcess[str]:
        return subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, check=False)

    missing = run()
    assert missing.returncode != 0
    assert "docker is missing" in missing.stdout
    docker = tmp_path / "bin" / "docker"
    docker.write_text('#!/bin/sh\necho "$@"\nexit 1\n')
    docker.chmod(0o755)
    failed = run()
    assert failed.returncode != 0
    assert "push r.example" not in failed.stdout
