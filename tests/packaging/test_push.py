"""`make push` builds images of the Dockerfile with the tool asked for, and pushes them tagged with the version."""

import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

from e2e.cluster.paths import REPOSITORY

VERSION = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["version"]


PRINTS = 'echo "${0##*/} $@"\n'


def push(folder: Path, tool: str | None = PRINTS, **variables: str) -> subprocess.CompletedProcess[str]:
    """Runs `make push` where `docker` and `buildah` are the script `tool`, or missing."""
    for name in ("make", "sh", "sed"):
        (folder / name).symlink_to(shutil.which(name) or "")
    for name in ("docker", "buildah") if tool else ():
        (folder / name).write_text(f"#!/bin/sh\n{tool}")
        (folder / name).chmod(0o755)
    command = ["make", "--no-print-directory", "push", *(f"{name}={value}" for name, value in variables.items())]
    environment = {"PATH": str(folder), "HOME": str(folder)}
    return subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, check=False)


def test_all_images_without_gpus_are_built_and_pushed_by_docker(tmp_path: Path) -> None:
    operator, graders, runtime = (
        f"r.example/team/longboat-{name}:{VERSION}" for name in ("operator", "graders", "runtime")
    )
    assert push(tmp_path, REGISTRY="r.example/team").stdout.splitlines() == [
        f"docker build --target operator --tag {operator} .",
        f"docker build --target graders --tag {graders} .",
        f"docker build --target runtime --tag {runtime} .",
        f"docker push {operator}",
        f"docker push {graders}",
        f"docker push {runtime}",
    ]


def test_the_image_for_gpus_is_built_by_buildah_with_more_arguments(tmp_path: Path) -> None:
    image = f"r.example/longboat-runtime-gpu:{VERSION}"
    pushed = push(tmp_path, REGISTRY="r.example", BUILD="buildah", IMAGE="longboat-runtime-gpu", ARGS="--layers")
    assert pushed.stdout.splitlines() == [
        f"buildah build --target runtime --build-arg BACKEND=gpu --layers --tag {image} .",
        f"buildah push {image}",
    ]


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({}, "REGISTRY is missing"),
        ({"REGISTRY": "r.example", "BUILD": "podman"}, "BUILD is docker or buildah, not podman"),
        ({"REGISTRY": "r.example", "IMAGE": "longboat-operator longboat"}, "not longboat-operator longboat"),
        ({"REGISTRY": "r.example", "IMAGE": ""}, "not empty"),
    ],
    ids=["registry", "tool", "image", "no image"],
)
def test_what_it_cannot_do_is_said_in_one_line(tmp_path: Path, variables: dict[str, str], words: str) -> None:
    refused = push(tmp_path, **variables)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert words in refused.stderr
    assert len(refused.stderr.splitlines()) == 1


def test_a_missing_tool_is_named(tmp_path: Path) -> None:
    missing = push(tmp_path, None, REGISTRY="r.example")
    assert missing.returncode != 0
    assert "docker is missing" in missing.stdout


def test_after_a_failed_build_nothing_is_pushed(tmp_path: Path) -> None:
    failed = push(tmp_path, f'{PRINTS}[ "$3" != runtime ]\n', REGISTRY="r.example")
    assert failed.returncode != 0
    assert [line.split()[1] for line in failed.stdout.splitlines()] == ["build", "build", "build"]


def test_a_refused_push_fails(tmp_path: Path) -> None:
    assert push(tmp_path, '[ "$1" != push ]\n', REGISTRY="r.example").returncode != 0


def test_a_tag_of_your_own_stands_for_the_version(tmp_path: Path) -> None:
    pushed = push(tmp_path, REGISTRY="r.example", IMAGE="longboat-operator", TAG="pr-7")
    assert pushed.stdout.splitlines()[-1] == "docker push r.example/longboat-operator:pr-7"
