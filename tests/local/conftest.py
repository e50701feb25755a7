"""What several runs on this machine share."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
import ray

from longboat_crds.rewards import DEFAULT_POOL, default_pools
from longboat_runtime.driver import sample_files
from longboat_runtime.local.graders import local_graders
from longboat_runtime.local.ray import start_ray
from longboat_runtime.object_store import MINIMAL_OBJECT_STORE
from longboat_runtime.reward.slots import resource
from longboat_runtime.tracking import trackers
from tests.support.waiting import DEADLINE_SECONDS


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gives trackers and sample files all the time they need at a job's end."""
    monkeypatch.setattr(trackers, "ENDED_SECONDS", DEADLINE_SECONDS)
    monkeypatch.setattr(sample_files, "END_SECONDS", DEADLINE_SECONDS)


@pytest.fixture(scope="module")
def sockets(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mapping[str, Path]]:
    """Ray and graders for all runs of a module; the path must be short enough for a socket."""
    folder = tmp_path_factory.mktemp("g")
    offered = {"longboat-store": 1, "longboat-rollout": 1, resource(DEFAULT_POOL): 1, "longboat-trainer": 1}
    start_ray(offered, MINIMAL_OBJECT_STORE)
    with local_graders(default_pools(), folder, folder) as sockets:
        yield sockets
    ray.shutdown()
