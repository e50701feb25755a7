"""Groups whose gradient is accumulated while their round is open: which they are, and what becomes of them."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence

import pytest

from longboat_runtime.rounds import events
from longboat_runtime.rounds.bounded_async import BoundedAsync
from longboat_runtime.rounds.by_domain import ByDomain
from longboat_runtime.rounds.continue_unfinished import ContinueUnfinished
from longboat_runtime.rounds.events import Event
from longboat_runtime.rounds.policy import Policy
from longboat_runtime.rounds.records import RoundState, SampleState
from longboat_runtime.rounds.snapshot import from_snapshot, to_snapshot
from longboat_runtime.rounds.streaming import Streaming
from longboat_runtime.rounds.synchronous import Synchronous
from longboat_runtime.rounds.tail_batching import TailBatching
from longboat_runtime.samples import GradeKind, PromptId, SampleId
from tests.rounds.test_tail_batching import bodies
from tests.rounds.world import World, replay

PROMPTS, GROUP, STEPS = 3, 2, 3
# Tokens of a group, those of its prompt included: 2 + 3 and 2 + 4.
TOKENS = 11
POLICIES: tuple[Policy, ...] = (
    Synchronous(PROMPTS, GROUP),
    Synchronous(PROMPTS, GROUP, drop_zero_variance=True),
    TailBatching(PROMPTS, GROUP, prompt_overcommit=1.5, sample_overcommit=1.0),
    TailBatching(PROMPTS, GROUP, prompt_overcommit=2.0, sample_overcommit=1.5, drop_zero_variance=True),
    ByDomain(PROMPTS, GROUP, {"a": Synchronous(1, GROUP), "b": Synchronous(2, GROUP)}),
    ContinueUnfinished(PROMPTS, GROUP, prompt_overcommit=1.5),
    BoundedAsync(PROMPTS, GROUP, max_staleness=1),
)


def started(policy: Policy, least_tokens: int = 1, unscored: frozenset[str] = frozenset(), steps: int = STEPS) -> World:
    world = World(Streaming(policy, least_tokens, unscored), GROUP, steps=steps)
    world.start()
    world.publish()
    return world


def complete(world: World, *rows: int, kind: GradeKind = GradeKind.SCORED) -> None:
    """Generates and grades the first attempts of these prompts, in this order."""
    for sample in [SampleId(0, row, 0, index) for row in rows for index in range(GROUP)]:
        world.finish(sample)
        world.grade(sample, kind)


def chunks(world: World) -> list[tuple[int, list[int]]]:
    """The chunks that began: the number of each, and the rows of its prompts."""
    return [(chunk.number, [row for _, row in chunk.prompts]) for chunk in bodies(world, events.ChunkStarted)]


def test_a_chunk_has_all_groups_that_are_ready_and_at_least_so_many_tokens() -> None:
    world = started(Synchronous(6, GROUP), 2 * TOKENS)
    complete(world, 1)
    assert chunks(world) == []
    complete(world, 0)
    assert chunks(world) == [(1, [1, 0])]
    complete(world, 3, 2, 4)
    assert len(chunks(world)) == 1, "the trainer does one thing at a time"
    world.accumulate()
    assert chunks(world)[1:] == [(2, [3, 2, 4])]
    world.accumulate()
    assert not world.training, "the round is open"
    world.run()
    assert world.ledger.step == STEPS
    assert len(world.batches[1]) == 6 * GROUP


def test_groups_are_in_the_order_in_which_they_were_completed_not_graded() -> None:
    world = started(Synchronous(PROMPTS, GROUP), 2 * TOKENS)
    samples = [SampleId(0, row, 0, index) for row in (2, 0) for index in range(GROUP)]
    for sample in samples:
        world.finish(sample)
    for sample in reversed(samples):
        world.grade(sample)
    assert chunks(world) == [(1, [2, 0])]


def test_a_step_waits_for_the_chunk_and_a_chunk_for_the_publication() -> None:
    world = started(Synchronous(PROMPTS, GROUP))
    complete(world, 0, 1, 2)
    assert world.ledger.rounds[1].state is RoundState.CLOSED
    assert not world.training
    world.accumulate()
    assert chunks(world) == [(1, [0])], "the rest is trained in the step"
    assert world.training == [1]
    world.train()
    assert world.publishing == [1]
    assert not world.streaming


def test_a_reward_that_is_known_only_with_the_batch_waits_for_the_step() -> None:
    world = started(Synchronous(PROMPTS, GROUP), unscored=frozenset({"main"}))
    complete(world, 0, kind=GradeKind.TIMEOUT)
    assert chunks(world) == []
    complete(world, 1)
    assert chunks(world) == [(1, [1])]
    assert chunks_of_timeouts(frozenset({"other"})) == [(1, [0])], "its timeouts have a score"


def chunks_of_timeouts(unscored: frozenset[str]) -> list[tuple[int, list[int]]]:
    world = started(Synchronous(PROMPTS, GROUP), unscored=unscored)
    complete(world, 0, kind=GradeKind.TIMEOUT)
    return chunks(world)


def test_only_the_oldest_round_is_streamed() -> None:
    world = started(BoundedAsync(1, GROUP, max_staleness=1))
    assert [*world.ledger.rounds] == [1, 2]
    complete(world, 1)
    assert chunks(world) == [], "the step before isn't committed"
    complete(world, 0)
    world.train()
    assert not world.streaming
    world.publish()
    assert world.training == [2], "it was closed before the trainer could begin a chunk"


def test_a_round_is_streamed_once_the_step_before_serves() -> None:
    world = started(BoundedAsync(2, GROUP, max_staleness=1))
    complete(world, 2)
    complete(world, 0, 1)
    world.accumulate()
    world.train()
    assert chunks(world) == [(1, [0])]
    world.publish()
    assert chunks(world)[1:] == [(1, [2])]


def test_what_is_lost_of_a_streamed_group_is_not_missed() -> None:
    world = started(Synchronous(PROMPTS, GROUP))
    complete(world, 0)
    world.accumulate()
    lost = SampleId(0, 0, 0, 1)
    assert world.lose(lost)
    assert not bodies(world, events.Relaunched)
    record = world.ledger.sample(lost)
    assert (record.state, record.score) == (SampleState.LOST, 1.0), "its reward still counts in the batch"
    assert not world.record(events.Relaunched(lost))
    complete(world, 1, 2)
    world.accumulate()
    assert world.training == [1]
    assert world.train()
    assert lost in world.batches[1]


@pytest.mark.parametrize("during", ["chunk", "round", "step"])
def test_lost_chunks_are_trained_from_the_store_and_lost_data_is_made_again(during: str) -> None:
    world = started(Synchronous(PROMPTS, GROUP))
    complete(world, 0)
    lost = SampleId(0, 0, 0, 1)
    if during != "chunk":
        world.accumulate()
    if during == "step":
        complete(world, 1, 2)
        world.accumulate()
        assert world.training
    world.lose(lost)
    world.lose_chunks()
    if during == "step":
        assert not bodies(world, events.Relaunched), "the trainer may have read it"
        world.train()
        assert bodies(world, events.StepFailed)
    assert bodies(world, events.Relaunched) == [events.Relaunched(lost)]
    assert world.ledger.sample(lost).kind is None
    world.run(steps=1)
    assert len(world.batches[1]) == PROMPTS * GROUP
    numbers = [number for number, _ in chunks(world)]
    assert numbers == [*range(1, len(numbers) + 1)], "no number is used again"


def test_a_step_that_failed_keeps_its_chunks() -> None:
    world = started(Synchronous(PROMPTS, GROUP))
    complete(world, 0)
    world.accumulate()
    samples = [SampleId(0, row, 0, index) for row in (1, 2) for index in range(GROUP)]
    for sample in samples:
        world.finish(sample)
    for sample in samples:
        world.grade(sample)
    world.accumulate()
    world.lose(samples[-1])
    assert world.train()
    assert bodies(world, events.StepFailed)
    assert PromptId(0, 0) in world.ledger.rounds[1].streamed
    world.run(steps=1)
    assert not bodies(world, events.ChunksLost)


def test_a_lowered_number_of_steps_waits_for_the_step_and_its_chunks() -> None:
    world = started(BoundedAsync(PROMPTS, GROUP, max_staleness=1))
    complete(world, 0)
    world.edit(1)
    world.run()
    assert world.ledger.step == 1
    assert len(world.batches[1]) == PROMPTS * GROUP
    assert all(chunk.step == 1 for chunk in bodies(world, events.ChunkStarted)), "rounds beyond the end aren't streamed"


def test_a_boundary_has_no_chunks_and_another_driver_begins_without() -> None:
    world = started(Synchronous(PROMPTS, GROUP))
    world.run(steps=1)
    world.publish()
    assert "streamed" not in json.dumps(world.boundary[0])
    assert "chunks" not in json.dumps(world.boundary[0])
    complete(world, 3, 4)
    open_snapshot = to_snapshot(world.ledger)
    assert from_snapshot(json.loads(json.dumps(open_snapshot))).rounds == world.ledger.rounds
    assert world.ledger.rounds[2].streaming
    world.ledger.apply(Event(world.ledger.seq + 1, 2, 0.0, events.Started(1)))
    round_ = world.ledger.rounds[2]
    assert (round_.streamed, round_.streaming, round_.chunks) == ({}, False, 0)
    world.start()
    world.run()
    assert [len(batch) for batch in world.batches.values()] == [PROMPTS * GROUP] * STEPS


@pytest.mark.parametrize("least_tokens", [1, 2 * TOKENS])
@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: type(policy).__name__)
@pytest.mark.parametrize("seed", range(3))
def test_chunks_change_no_other_decision(policy: Policy, seed: int, least_tokens: int) -> None:
    plain, streamed = World(policy, GROUP, steps=STEPS), World(Streaming(policy, least_tokens), GROUP, steps=STEPS)
    for world in (plain, streamed):
        world.start()
        chance = random.Random(seed)
        while make_one_more(world, chance):
            pass
    assert bodies(streamed, events.ChunkDone)
    kinds = (events.ChunkStarted, events.ChunkDone)
    assert [e.body for e in plain.log] == [e.body for e in streamed.log if not isinstance(e.body, kinds)]
    assert to_snapshot(replay(streamed.log, GROUP, STEPS)) == to_snapshot(streamed.ledger)


def make_one_more(world: World, chance: random.Random) -> bool:
    """Chunks take no time; whatever else is under way may end next."""
    if world.accumulate():
        return True
    generated = world.samples(SampleState.GENERATED)
    choices: Sequence[SampleId] = [*world.samples(SampleState.RUNNING), *generated, *world.pausing]
    if not choices:
        return world.train() or world.publish()
    sample = chance.choice(choices)
    if sample in world.pausing:
        return world.paused(sample)
    return world.grade(sample) if sample in generated else world.finish(sample)


def test_the_ledger_refuses_what_is_no_chunk() -> None:
    world = started(BoundedAsync(PROMPTS, GROUP, max_staleness=1), least_tokens=10**6)
    complete(world, 0, 1, 3)
    world.finish(SampleId(0, 2, 0, 0))
    first, second, running, later = (PromptId(0, row) for row in (0, 1, 2, 3))
    for body in (
        events.ChunkStarted(2, 1, 1, (first,)),
        events.ChunkStarted(1, 2, 1, (later,)),
        events.ChunkStarted(1, 1, 2, (first,)),
        events.ChunkStarted(1, 1, 1, (first, running)),
        events.ChunkStarted(1, 1, 1, (first, later)),
        events.ChunkStarted(1, 1, 1, (first, first)),
        events.ChunkStarted(1, 1, 1, ()),
        events.ChunkDone(1, 1),
        events.ChunksLost(1),
    ):
        assert not world.record(body), body
    assert world.record(events.ChunkStarted(1, 1, 1, (first,)))
    assert not world.record(events.ChunkStarted(1, 1, 2, (second,))), "one is under way"
    assert world.record(events.ChunkDone(1, 1))
    assert not world.record(events.ChunkDone(1, 1))
    assert not world.record(events.ChunkStarted(1, 1, 2, (first,))), "it is streamed"
    assert not world.record(events.GroupDropped(first, 0, events.DropReason.ENGINE_DEATHS))
    assert world.lose(SampleId(0, 0, 0, 0))
    assert not world.record(events.GroupDropped(first, 0, events.DropReason.ENGINE_DEATHS))
    assert world.record(events.ChunksLost(1))
