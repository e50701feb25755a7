"""Preemptions are those for want of KV cache; publications and moves cause none."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from longboat_runtime.rollout.engine import EngineConfig
from longboat_runtime.samples import FinishReason, GeneratedSample
from tests.rollout.conformance.hosted import HostedEngine
from tests.rollout.reference import ReferenceModel, request
from tests.support.tiny_model import build_tiny_model

pytestmark = pytest.mark.slow

RUNNING, LONG = 32, 480


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module", params=[False, True], ids=["in-process", "spawned"])
def engine(request: pytest.FixtureRequest, directory: Path) -> Iterator[HostedEngine]:
    """With KV cache for all that run."""
    config = EngineConfig("e", str(directory), "float32", RUNNING, (0,), 512, kv_cache_bytes=2**26, enforce_eager=True)
    hosted = HostedEngine(config, spawned=request.param)
    try:
        hosted.wait_started()
        yield hosted
    finally:
        hosted.close()


def drawn(engine: HostedEngine, more: int) -> None:
    """Waits until the engine has drawn so many tokens more."""
    wanted = engine.stats().generated_tokens + more
    while engine.stats().generated_tokens < wanted:
        time.sleep(0.002)  # it may have the same CPU


def test_publications_and_moves_in_mid_round_preempt_nothing(engine: HostedEngine, directory: Path) -> None:
    reference = ReferenceModel(directory)
    engine.update_weights(reference.publication())
    requests = [request(0, index, tokens=LONG) for index in range(RUNNING)]
    engine.submit(requests)
    while engine.stats().running <= RUNNING * 3 / 4:
        time.sleep(0.002)
    for _ in range(3):
        reference.step(0.02)
        engine.update_weights(reference.publication())
        drawn(engine, RUNNING)
    engine.abort([asked.id for asked in requests])
    samples: list[GeneratedSample] = []
    while len(samples) < RUNNING:
        samples += engine.drain_finished(60.0)
    parts = [sample for sample in samples if sample.finish_reason is FinishReason.ABORT]
    engine.submit([replace(requests[part.id.index], begun=part.spans) for part in parts], parts)
    moved = len(parts)
    while moved:
        moved -= len(engine.drain_finished(60.0))
    assert engine.stats().preemptions == 0
