"""Preemptions are those for want of KV cache; publications and moves cause none."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from longboat_runtime.rollout.engine import EngineConfig
from longboat_runtime.samples import FinishReason
from tests.rollout.conformance.hosted import HostedEngine, lent
from tests.rollout.conformance.test_engine import collect, draw
from tests.rollout.reference import ReferenceModel, request
from tests.support.tiny_model import build_tiny_model
from tests.support.waiting import eventually

RUNNING, LONG = 32, 480


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(
    scope="module", params=[False, pytest.param(True, marks=pytest.mark.extended)], ids=["in-process", "spawned"]
)
def engine(request: pytest.FixtureRequest, directory: Path) -> Iterator[HostedEngine]:
    """With KV cache for all that run."""
    config = EngineConfig("e", str(directory), "float32", RUNNING, (0,), 512, kv_cache_bytes=2**26, enforce_eager=True)
    yield from lent(config, request, "spawned" if request.param else "in-process")


def test_publications_and_moves_in_mid_round_preempt_nothing(engine: HostedEngine, directory: Path) -> None:
    reference = ReferenceModel(directory)
    requests = [request(0, index, tokens=LONG) for index in range(RUNNING)]

    def versions_of_moved() -> list[int]:
        """Counts the weight versions that have drawn each sample that has moved after three publications."""
        engine.update_weights(reference.publication())
        engine.submit(requests)
        ended = draw(engine, RUNNING, RUNNING)
        for _ in range(3):
            reference.step(0.02)
            engine.update_weights(reference.publication())
            ended += draw(engine, RUNNING, RUNNING - len(ended))
        engine.abort([asked.id for asked in requests])
        samples = collect(engine, RUNNING, ended).values()
        parts = [sample for sample in samples if sample.finish_reason is FinishReason.ABORT]
        engine.submit([replace(requests[part.id.index], begun=part.spans) for part in parts], parts)
        collect(engine, len(parts))
        engine.take_load()
        assert engine.load.preemptions == 0
        return [len(part.spans) for part in parts]

    # On a machine that stalls they may have ended before.
    eventually(versions_of_moved, lambda versions: max(versions, default=0) > 3)
