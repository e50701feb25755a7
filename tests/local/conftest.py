"""What several runs on this machine share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import ray

from longboat_runtime.agent.ray_command import MINIMAL_OBJECT_STORE
from longboat_runtime.local.graders import local_graders
from longboat_runtime.local.ray import start_ray


@pytest.fixture(scope="module")
def socket(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Ray and graders for all runs of a module; the path must be short enough for a socket."""
    folder = tmp_path_factory.mktemp("g")
    start_ray(
        {"longboat-store": 1, "longboat-rollout": 1, "longboat-reward": 1, "longboat-trainer": 1}, MINIMAL_OBJECT_STORE
    )
    with local_graders(1, folder / "s", folder):
        yield folder / "s"
    ray.shutdown()
