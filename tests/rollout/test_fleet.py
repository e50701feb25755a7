"""The fleet on a real Ray with real engines: two of them in one rollout node."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio
import ray

from longboat_crds.job import RLJobSpec
from longboat_crds.problems import SpecProblem
from longboat_crds.reasons import Reason
from longboat_runtime.local.ray import start_ray
from longboat_runtime.object_store import MINIMAL_OBJECT_STORE
from longboat_runtime.rollout import fleet as fleets
from longboat_runtime.rollout.fleet import RayRolloutFleet
from longboat_runtime.rollout.member import MemberState
from longboat_runtime.samples import FinishedSample, FinishReason, LostSample, SampleId
from longboat_runtime.store.actor import SampleStoreActor, start_store
from longboat_runtime.store.client import StoreClient
from longboat_runtime.weights.publication import WeightPublication
from tests.rollout.reference import PROBE, ReferenceModel, request
from tests.support.publications import PackedSource
from tests.support.tiny_model import build_tiny_model
from tests.support.waiting import DEADLINE_SECONDS, eventually_async

pytestmark = pytest.mark.asyncio(loop_scope="module")

ENGINES = 2
LONG = 480


@pytest.fixture(scope="module")
def model_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def reference(model_directory: Path) -> ReferenceModel:
    return ReferenceModel(model_directory)


@pytest.fixture(scope="module")
def store() -> Iterator[StoreClient]:
    start_ray({"longboat-rollout": ENGINES + 1, "longboat-store": 1}, MINIMAL_OBJECT_STORE)
    yield StoreClient(start_store())
    ray.shutdown()


def spec(model: Path, dtype: str = "Float32", engines: int = ENGINES) -> RLJobSpec:
    return RLJobSpec.model_validate(
        {
            "runtimeRef": {"name": "any"},
            "model": {"path": str(model), "dtype": dtype, "maxLength": 512},
            "dataset": {"reasoningGym": {"task": "chain_sum"}},
            "rounds": {"steps": 1, "promptsPerRound": 1},
            "rollout": {
                "enginesPerPod": engines,
                "sampling": {"maxTokens": 32},
                "kvCache": "16Mi",
                "maxSequences": 8,
                "enforceEager": True,
            },
            "rewards": [{"name": "r", "kind": "ReasoningGym"}],
        }
    )


def published(reference: ReferenceModel) -> WeightPublication:
    """As the trainer does it: through Ray's object store."""
    publication = reference.publication()
    return replace(publication, payload=PackedSource(publication.payload))


@asynccontextmanager
async def opened(spec: RLJobSpec, store: StoreClient) -> AsyncIterator[RayRolloutFleet]:
    """Opens a fleet that waits for its engines' answers however long they take."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fleets, "CALL_SECONDS", DEADLINE_SECONDS)
        made = RayRolloutFleet(spec, store)
        yield made
        await made.close()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def fleet(store: StoreClient, model_directory: Path) -> AsyncIterator[RayRolloutFleet]:
    async with opened(spec(model_directory), store) as made:
        yield made


async def events_of(fleet: RayRolloutFleet, count: int) -> dict[SampleId, FinishedSample | LostSample]:
    events: list[FinishedSample | LostSample] = []
    while len(events) < count:
        events += await fleet.finished()
    by_id = {event.id: event for event in events}
    assert len(by_id) == len(events) == count
    return by_id


async def serving(fleet: RayRolloutFleet, engines: int) -> list[str]:
    """Names of the serving engines, once there are so many."""

    def names() -> list[str]:
        members = fleet._keeper.members.values()
        return sorted(member.name for member in members if member.state is MemberState.SERVING)

    await fleet._tasks.until(lambda: len(names()) >= engines)
    return names()


@pytest.mark.extended
async def test_an_engine_that_cannot_start_says_what_to_change(store: StoreClient, tmp_path: Path) -> None:
    broken = RayRolloutFleet(spec(tmp_path / "nothing"), store)
    try:
        with pytest.raises(SpecProblem, match=r"nothing/config\.json") as caught:
            await broken.finished()
        assert caught.value.field == "spec.model.path"
    finally:
        await broken.close()


@pytest.mark.extended
async def test_what_vllm_refuses_fails_the_job_at_the_first_start(store: StoreClient, tmp_path: Path) -> None:
    directory = build_tiny_model(tmp_path / "model")
    config = json.loads((directory / "config.json").read_text())
    quantized = {"quantization_config": {"quant_method": "unheard_of"}}
    (directory / "config.json").write_text(json.dumps(config | quantized))
    broken = RayRolloutFleet(spec(directory), store)
    try:
        with pytest.raises(SpecProblem, match="Unknown quantization method: unheard_of") as caught:
            await broken.finished()
        problem = caught.value.status
        assert (problem.reason, problem.field, problem.fatal) == (Reason.MODEL_INVALID, "spec.model.path", True)
        assert problem.message == (
            "vLLM can't start an engine: Unknown quantization method: unheard_of. Correct the model's directory, or use another model."
        )
        assert broken._keeper.state.deaths == 0
    finally:
        await broken.close()


@pytest.mark.extended
async def test_samples_wait_for_an_engine_and_reach_the_store(
    fleet: RayRolloutFleet, store: StoreClient, reference: ReferenceModel
) -> None:
    requests = [request(row, index) for row in range(4) for index in range(4)]
    unwanted = request(9)
    await fleet.submit([*requests, unwanted])
    await fleet.abort([unwanted.id])
    (aborted,) = await fleet.finished()
    assert (aborted.id, aborted.tokens) == (unwanted.id, 0)
    await fleet.wait_started(ENGINES)
    report = await fleet.publish(published(reference))
    assert (len(report.serving), dict(report.refused)) == (ENGINES, {})
    assert report.parity < 1e-4
    events = await events_of(fleet, len(requests))
    for sample in await store.get([asked.id for asked in requests]):
        assert reference.difference(sample) < 1e-4
        assert events[sample.id] == sample.summary
    by_row = {row: {events[asked.id].engine for asked in requests if asked.id.row == row} for row in range(4)}
    assert all(len(engines) == 1 for engines in by_row.values())
    assert set.union(*by_row.values()) == set(report.serving)
    assert set(await store.held_ids()) == {*events}


@pytest.mark.extended
async def test_stacks_show_the_engines_threads(fleet: RayRolloutFleet) -> None:
    stacks = await fleet.stacks()
    assert len(stacks) == ENGINES
    assert all("Thread engine" in text and "inprocess.py" in text for text in stacks.values())


@pytest.mark.extended
async def test_a_dead_engines_samples_are_lost_and_its_successor_serves(
    fleet: RayRolloutFleet, store: StoreClient, reference: ReferenceModel
) -> None:
    requests = [request(row, tokens=LONG, attempt=1) for row in range(4)]
    await fleet.submit(requests)
    before = await serving(fleet, ENGINES)
    victim = fleet._keeper.members[before[0]]
    # Not all of them have arrived; one that draws its end token first has come back.

    async def all_run() -> bool:
        load = await victim.actor.take_load.remote()
        return load.running >= len(fleet._router.running(victim.name))

    await eventually_async(all_run)
    ran_there = fleet._router.running(victim.name)
    ray.kill(victim.actor)
    lost = {event.id: event for event in (await events_of(fleet, 4)).values() if isinstance(event, LostSample)}
    assert set(ran_there) & lost.keys() == lost.keys()
    assert all(event.engine_died for event in lost.values()), "its pod lives"
    await fleet._tasks.until(lambda: fleet._keeper.state.deaths > 0)
    assert fleet._keeper.state.deaths == 1
    after = await serving(fleet, ENGINES)
    assert (victim.name in after, before[1] in after) == (False, True)
    again = [request(row, attempt=2) for row in range(4)]
    await fleet.submit(again)
    for event in (await events_of(fleet, len(again))).values():
        assert isinstance(event, FinishedSample)
        assert {span.version for span in event.spans} == {reference.version}


@pytest.mark.extended
async def test_an_engine_that_does_not_pass_the_gate_serves_nothing(
    fleet: RayRolloutFleet, reference: ReferenceModel
) -> None:
    running = [request(row, tokens=LONG, attempt=3) for row in range(4)]
    await fleet.submit(running)
    good = published(reference)
    damaged = replace(good.payload, packed=replace(good.payload.packed, checksum="0" * 32))
    report = await fleet.publish(replace(good, payload=damaged))
    assert (report.serving, len(report.refused)) == ((), ENGINES)
    assert {type(event) for event in (await events_of(fleet, 4)).values()} <= {LostSample, FinishedSample}
    waiting = request(0, attempt=4)
    await fleet.submit([waiting])
    await fleet.publish(published(reference))
    event = (await events_of(fleet, 1))[waiting.id]
    assert isinstance(event, FinishedSample)
    assert {span.version for span in event.spans} == {reference.version}


def _store_of_its_own() -> StoreClient:
    """As every driver has: engines of two drivers may have one name, and a store takes nothing from those that have died."""
    return StoreClient(ray.remote(SampleStoreActor).options(num_cpus=0).remote())


@pytest.mark.extended
async def test_an_engine_restarted_with_a_stale_copy_is_refused(fleet: RayRolloutFleet, model_directory: Path) -> None:
    """In bfloat16, where the first publication calibrates: what the engine before it has measured holds for its successor.

    It gets the weights again and is restarted, and as no other engine serves the job ends with the difference.
    """
    trainer = ReferenceModel(model_directory)
    alone = RayRolloutFleet(spec(model_directory, "BFloat16", engines=1), _store_of_its_own())
    try:
        await alone.publish(published(trainer))
        assert alone.calibrations["bfloat16/1"] < 0.05
        before = trainer.logprobs(PROBE)
        stale = trainer.stale_publication(step=0.005)
        stale = replace(stale, payload=PackedSource(stale.payload))
        difference = max(abs(a - b) for a, b in zip(before, stale.probe_logprobs, strict=True))
        assert 0.2 < difference < 0.9, "less than an engine may differ by that has no calibration"
        alone._keeper.updates.publication = stale
        (member,) = alone._keeper.members.values()
        ray.kill(member.actor)
        state = await alone.changed(alone._keeper.state)
        while not state.refused:
            state = await alone.changed(state)
        assert "log-probs of the probe differ by" in next(iter(state.refused.values()))
        with pytest.raises(SpecProblem, match="sent them again and was restarted") as failed:
            await alone.finished()
        assert (failed.value.reason, failed.value.fatal) == ("EngineRefused", True)
    finally:
        await alone.close()


@pytest.mark.extended
async def test_aborted_samples_come_back_through_the_store(fleet: RayRolloutFleet, store: StoreClient) -> None:
    requests = [request(row, tokens=LONG, attempt=5) for row in range(4)]
    await fleet.submit(requests)
    await fleet.abort([asked.id for asked in requests])
    await fleet.abort([asked.id for asked in requests])
    events = await events_of(fleet, len(requests))
    assert {event.finish_reason for event in events.values() if isinstance(event, FinishedSample)} <= {
        FinishReason.ABORT,
        FinishReason.STOP,
        FinishReason.LENGTH,
    }
    assert {sample.id for sample in await store.get(list(events))} == events.keys()
