"""Benchmarks put engines of their own in the place of a job's."""

from contextlib import AbstractContextManager

import pytest
import ray

from bench.rounds.paced import PacedActor, engines_of
from longboat_runtime.rollout.actor import EngineActor
from longboat_runtime.rollout.ray_cluster import RayCluster


@pytest.mark.parametrize(
    ("engines", "expected"),
    [
        (engines_of(PacedActor), PacedActor),
        (engines_of(EngineActor), EngineActor),
    ],
    ids=["paced", "not paced"],
)
def test_a_job_starts_them_within_the_block(
    engines: AbstractContextManager[object], expected: type[EngineActor], monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[type[EngineActor]] = []
    monkeypatch.setattr(ray, "remote", started.append)
    with engines, pytest.raises(AttributeError):  # None has no options
        RayCluster().start(None, None, None)
    with pytest.raises(AttributeError):
        RayCluster().start(None, None, None)
    assert started == [expected, EngineActor]
