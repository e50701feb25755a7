"""Reshapes on a real Ray with real engines: two engines of one device become one of two, and back."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest
import pytest_asyncio
import ray

from longboat_runtime.local.ray import start_ray
from longboat_runtime.object_store import MINIMAL_OBJECT_STORE
from longboat_runtime.rollout.fleet import RayRolloutFleet
from longboat_runtime.rollout.load import Load, total
from longboat_runtime.rollout.protocol import ReshapePhase
from longboat_runtime.samples import FinishedSample, FinishReason, FleetReport, LostSample, MovedSample
from longboat_runtime.store.actor import start_store
from longboat_runtime.store.client import StoreClient
from tests.rollout.reference import PROBE, ReferenceModel, request
from tests.rollout.test_fleet import opened, published, serving, spec
from tests.support.publications import PackedSource
from tests.support.tiny_model import build_tiny_model
from tests.support.waiting import eventually_async

pytestmark = [pytest.mark.extended, pytest.mark.asyncio(loop_scope="module")]

LONG = 480


@pytest.fixture(scope="module")
def model_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def store() -> Iterator[StoreClient]:
    start_ray({"longboat-rollout": 2, "longboat-store": 1}, MINIMAL_OBJECT_STORE)
    yield StoreClient(start_store())
    ray.shutdown()


@pytest_asyncio.fixture(loop_scope="module")
async def fleet(store: StoreClient, model_directory: Path) -> AsyncIterator[RayRolloutFleet]:
    async with opened(spec(model_directory), store) as made:
        yield made


@pytest_asyncio.fixture(loop_scope="module")
async def coarse(store: StoreClient, model_directory: Path) -> AsyncIterator[RayRolloutFleet]:
    """Engines that compute in bfloat16."""
    async with opened(spec(model_directory, "BFloat16"), store) as made:
        yield made


async def reports(fleet: RayRolloutFleet, finished: int) -> list[FleetReport]:
    """All reports until so many samples have finished or are lost."""
    found: list[FleetReport] = []
    while sum(not isinstance(report, MovedSample) for report in found) < finished:
        found += await fleet.finished()
    return found


async def test_what_runs_goes_on_in_the_new_shape(
    fleet: RayRolloutFleet, store: StoreClient, model_directory: Path
) -> None:
    reference = ReferenceModel(model_directory)
    await fleet.wait_started(2)
    await fleet.publish(published(reference))
    attempts = count()

    async def reshaped() -> list[MovedSample]:
        """Returns the moves of samples that had some of their tokens; none if all had ended before."""
        names, attempt = await serving(fleet, 2), next(attempts)
        requests = [request(row, tokens=LONG, attempt=attempt) for row in range(6)]
        await fleet.submit(requests)
        loads: list[Load] = []

        async def drawn() -> int:
            loads.extend((await fleet.loads()).values())
            return total(loads).generated_tokens

        await eventually_async(drawn, lambda tokens: tokens >= 200)
        done = await fleet.reshape(2, one_by_one=False)
        assert (done.tensor_parallel, done.failure) == (2, None)
        assert set(done.seconds) == set(ReshapePhase)
        (name,) = await serving(fleet, 1)
        assert name.endswith("/0-1")
        reported = await reports(fleet, len(requests))
        moves = [report for report in reported if isinstance(report, MovedSample)]
        assert {(move.source in names, move.target) for move in moves} <= {(True, name)}
        assert not [report for report in reported if isinstance(report, LostSample)]
        whole = {report.id: report for report in reported if isinstance(report, FinishedSample)}
        assert whole.keys() == {asked.id for asked in requests}
        assert FinishReason.ABORT not in {report.finish_reason for report in whole.values()}
        for sample in await store.get([asked.id for asked in requests]):
            assert reference.difference(sample) < 1e-4, "log-probs are those of the engine that drew each token"
        back = await fleet.reshape(1, one_by_one=True)
        assert (back.tensor_parallel, back.failure) == (1, None)
        assert len(await serving(fleet, 2)) == 2
        return [move for move in moves if move.spans]

    moves = await eventually_async(reshaped)
    assert all(move.spans[0].end > 0 for move in moves)
    assert fleet._keeper.state.deaths == 0, "engines that are ended don't die"


async def test_a_reshape_onto_an_engine_with_a_stale_copy_returns_to_the_old_shape(
    coarse: RayRolloutFleet, store: StoreClient, model_directory: Path
) -> None:
    """The first engine of a size calibrates; what it has measured judges those that come later."""
    trainer = ReferenceModel(model_directory)
    await coarse.wait_started(2)
    await coarse.publish(published(trainer))
    assert (await coarse.reshape(2, one_by_one=False)).failure is None
    assert coarse.calibrations.keys() == {"bfloat16/1", "bfloat16/2"}
    assert (await coarse.reshape(1, one_by_one=False)).failure is None
    before = trainer.logprobs(PROBE)
    stale = trainer.stale_publication(step=0.005)
    stale = replace(stale, payload=PackedSource(stale.payload))
    difference = max(abs(a - b) for a, b in zip(before, stale.probe_logprobs, strict=True))
    assert 0.2 < difference < 0.9, "less than an engine may differ by that has no calibration"
    good, coarse._keeper.updates.publication = coarse._keeper.updates.publication, stale
    failed = await coarse.reshape(2, one_by_one=False)
    assert failed.tensor_parallel == 1
    assert "log-probs of the probe differ by" in str(failed.failure)
    coarse._keeper.updates.publication = good
    await coarse.publish(replace(published(trainer), version=99))
    assert len(await serving(coarse, 2)) == 2


async def test_a_shape_that_cannot_start_returns_to_the_old_one(fleet: RayRolloutFleet, model_directory: Path) -> None:
    reference = ReferenceModel(model_directory)
    await fleet.publish(published(reference))
    await serving(fleet, 2)
    small = fleet._keeper._spec.rollout.model_copy(update={"kv_cache": "1Ki"})
    fleet._keeper._spec, whole = fleet._keeper._spec.model_copy(update={"rollout": small}), fleet._keeper._spec
    reshaping = fleet.reshape(2, one_by_one=False)
    failed = await reshaping
    fleet._keeper._spec = whole
    assert "one sequence may have 512" in str(failed.failure)
    assert len(await serving(fleet, 2)) == 2
