from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from longboat_runtime.rollout.engine import EngineConfig
from tests.rollout.conformance.hosted import HostedEngine, lent
from tests.rollout.reference import ReferenceModel
from tests.support.tiny_model import build_tiny_model

# At most so many samples run at once, so that more than these wait.
MAX_SEQUENCES = 8

# Room for two long samples (four with two workers): the others are preempted.
KV_CACHE_BYTES = 2**20

KINDS = {"in-process": (1, False), "in-process-tp2": (2, False), "spawned": (1, True)}
# The quickest kind shows what all kinds share.
PARAMETERS = ["in-process", *(pytest.param(kind, marks=pytest.mark.extended) for kind in ("in-process-tp2", "spawned"))]


@pytest.fixture(scope="module")
def model_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="package")
def in_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HostedEngine]:
    """A process that has an engine for each module in turn, by `replace`: most of a start is importing vLLM."""
    model = build_tiny_model(tmp_path_factory.mktemp("model"))
    hosted = HostedEngine(
        EngineConfig("first", str(model), "float32", max_length=512, kv_cache_bytes=2**20, enforce_eager=True),
        spawned=False,
    )
    try:
        hosted.wait_started()
        yield hosted
    finally:
        hosted.close()


@pytest.fixture(scope="module", params=PARAMETERS)
def engine(request: pytest.FixtureRequest, model_directory: Path) -> Iterator[HostedEngine]:
    tensor_parallel, _ = KINDS[request.param]
    config = EngineConfig(
        name=request.param,
        model=str(model_directory),
        dtype="float32",
        max_sequences=MAX_SEQUENCES,
        devices=tuple(range(tensor_parallel)),
        max_length=512,
        kv_cache_bytes=KV_CACHE_BYTES,
        enforce_eager=True,
    )
    yield from lent(config, request, request.param)


@pytest.fixture(scope="module")
def reference(engine: HostedEngine, model_directory: Path) -> ReferenceModel:
    """Its first publication is already served."""
    model = ReferenceModel(model_directory)
    engine.update_weights(model.publication())
    return model
