"""A sample with which engines die is retried a few times, and then given up with its group."""

from __future__ import annotations

import json

import pytest

from longboat_runtime.rounds import events
from longboat_runtime.rounds.bounded_async import BoundedAsync
from longboat_runtime.rounds.continue_unfinished import ContinueUnfinished
from longboat_runtime.rounds.events import DropReason, Event, LogEntry
from longboat_runtime.rounds.policy import Policy
from longboat_runtime.rounds.records import SampleState
from longboat_runtime.rounds.rules import MOST_ENGINE_DEATHS
from longboat_runtime.rounds.snapshot import from_snapshot, to_snapshot
from longboat_runtime.rounds.synchronous import Synchronous
from longboat_runtime.rounds.tail_batching import TailBatching
from longboat_runtime.samples import SampleId
from tests.rounds.world import World, replay

POLICIES = [
    Synchronous(2, 2),
    TailBatching(2, 2, prompt_overcommit=1.5, sample_overcommit=1.5),
    ContinueUnfinished(2, 2, prompt_overcommit=1.5),
    BoundedAsync(2, 2, max_staleness=1),
]


def world_of(policy: Policy) -> World:
    world = World(policy, 2, steps=2)
    world.start()
    world.publish()
    return world


def dropped(world: World) -> list[events.GroupDropped]:
    return [event.body for event in world.log if isinstance(event.body, events.GroupDropped)]


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: type(policy).__name__)
def test_the_third_death_drops_the_group_with_its_reason(policy: Policy) -> None:
    world = world_of(policy)
    killer, beside = world.samples(SampleState.RUNNING)[:2]
    for deaths in range(1, MOST_ENGINE_DEATHS):
        world.lose(killer, engine_died=True)
        assert killer in world.samples(SampleState.RUNNING), f"made again after {deaths} deaths"
    world.lose(killer, engine_died=True)
    assert dropped(world) == [events.GroupDropped(killer.prompt, 0, DropReason.ENGINE_DEATHS)]
    assert beside in world.stopping, "what else runs of the group is stopped"
    world.run()
    assert world.ledger.step == 2, "the job goes on without it"
    assert world.fate[killer.prompt] == "dropped"
    assert len(world.batches[1]) == 2, "its place is not filled"


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: type(policy).__name__)
def test_lost_pods_and_lost_data_are_not_held_against_a_sample(policy: Policy) -> None:
    world = world_of(policy)
    sample = world.samples(SampleState.RUNNING)[0]
    for _ in range(2 * MOST_ENGINE_DEATHS):
        world.lose(sample)
    assert sample in world.samples(SampleState.RUNNING)
    assert not dropped(world)


def test_deaths_are_remembered_by_snapshots_and_by_the_log() -> None:
    world = world_of(POLICIES[0])
    killer = SampleId(0, 0, 0, 0)
    for _ in range(MOST_ENGINE_DEATHS - 1):
        world.lose(killer, engine_died=True)
    read = json.loads(json.dumps(to_snapshot(world.ledger)))
    assert from_snapshot(read).sample(killer).engine_deaths == MOST_ENGINE_DEATHS - 1
    world.lose(killer, engine_died=True)
    log = [LogEntry.from_json(json.loads(json.dumps(event.to_json()))) for event in world.log]
    again = replay(log, 2, steps=2)
    assert to_snapshot(again) == to_snapshot(world.ledger)
    assert again.dropped[DropReason.ENGINE_DEATHS] == 1


def test_logs_from_before_deaths_were_distinguished_can_be_read() -> None:
    body = events.Lost(SampleId(0, 0, 0, 0), "gone")
    written = Event(1, 1, 0.0, body).to_json()
    del written["engine_died"]
    assert LogEntry.from_json(written).body == body
