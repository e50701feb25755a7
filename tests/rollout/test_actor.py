"""How an engine's actor has samples go on with what the store has of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from longboat_runtime.rollout.actor import EngineActor
from longboat_runtime.rollout.engine import EngineConfig
from longboat_runtime.rollout.environment import NodeDevices
from longboat_runtime.samples import FinishReason, GeneratedSample, SampleId, SampleRequest, Segment, VersionSpan
from longboat_runtime.store.actor import HeldSamples
from tests.rollout.reference import request
from tests.support.samples import with_response

SPANS = (VersionSpan(3, 0, 2), VersionSpan(4, 2, 5))


class Store:
    """What the client of the store returns, without Ray."""

    def __init__(self) -> None:
        self.held = HeldSamples()

    async def get(self, ids: Sequence[SampleId]) -> list[GeneratedSample]:
        return self.held.get(ids)


class Recorder:
    """An engine that notes what it is told to begin."""

    def __init__(self) -> None:
        self.submitted: list[SampleId] = []
        self.begun: dict[SampleId, GeneratedSample] = {}

    def submit(self, requests: Sequence[SampleRequest], begun: Sequence[GeneratedSample] = ()) -> None:
        self.submitted += [one.id for one in requests]
        self.begun.update({sample.id: sample for sample in begun})


def part(of: SampleRequest) -> GeneratedSample:
    segment = Segment.single_turn(
        np.asarray(of.prompt_ids, np.int32), np.arange(5, dtype=np.int32), np.zeros(5, np.float32), SPANS
    )
    return GeneratedSample(
        of.id,
        (segment,),
        FinishReason.ABORT,
        "abcde",
        "e",
    )


def actor() -> tuple[EngineActor, Recorder, Store]:
    store, engine = Store(), Recorder()
    made = EngineActor(EngineConfig("e", "/model", "float32"), NodeDevices(1), store)  # type: ignore[arg-type]
    made._engine = engine  # type: ignore[assignment]
    return made, engine, store


async def test_samples_go_on_with_just_what_the_driver_knows_of_them() -> None:
    made, engine, store = actor()
    fresh = request(0)
    known, gone, other = (replace(request(row), begun=SPANS) for row in (1, 2, 3))
    store.held.put([part(known), with_response(part(other), spans=(VersionSpan(4, 0, 5),))])
    assert await made.submit([fresh, known, gone, other]) == [gone.id, other.id]
    assert engine.submitted == [fresh.id, known.id]
    assert engine.begun == {known.id: store.held.get([known.id])[0]}
