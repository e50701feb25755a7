"""Timelines of whole runs under real policies, with losses and restarts, against what the ledger says."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from random import Random

import pytest

from longboat_runtime.rounds import events
from longboat_runtime.rounds.bounded_async import BoundedAsync
from longboat_runtime.rounds.continue_unfinished import ContinueUnfinished
from longboat_runtime.rounds.policy import Policy
from longboat_runtime.rounds.records import SampleState
from longboat_runtime.rounds.tail_batching import TailBatching
from longboat_runtime.samples import SampleId
from longboat_runtime.timeline.bars import Bar, Fate, Timeline
from longboat_runtime.timeline.fold import fold
from longboat_runtime.timeline.trace import trace
from tests.rounds.world import World

TAIL = TailBatching(2, 2, prompt_overcommit=1.5, sample_overcommit=1.5)


def ran(policy: Policy, seed: int) -> World:
    """A run to its end; now and then a sample is lost or the driver starts again."""
    random, world = Random(seed), World(policy, group_size=2, steps=4)
    world.start()
    while world.ledger.step < 4:
        running, generated = world.samples(SampleState.RUNNING), world.samples(SampleState.GENERATED)
        match random.random():
            case chance if chance < 0.02:
                world.start()
            case chance if chance < 0.1 and (running or generated):
                world.lose(random.choice(running + generated))
            case chance if chance < 0.6 and running:
                world.finish(random.choice(running))
            case chance if chance < 0.9 and generated:
                world.grade(random.choice(generated))
            case chance if chance < 0.95 and world.pausing:
                world.paused(random.choice(world.pausing))
            case _:
                assert world.train() or world.publish() or running or generated or world.pausing
    return world


@pytest.mark.parametrize("seed", range(25))
@pytest.mark.parametrize("policy", [TAIL, BoundedAsync(2, 2, 2)], ids=["tail batching", "two ahead"])
def test_a_timeline_tells_what_the_ledger_did(policy: Policy, seed: int) -> None:
    world = ran(policy, seed)
    timeline = fold(world.log)
    kept = {r.step: sorted(bar.sample for bar in r.bars if bar.fate is Fate.KEPT) for r in timeline.rounds if r.step}
    assert kept == {step: list(batch) for step, batch in world.batches.items()}
    kinds = Counter(type(event.body) for event in world.log)
    assert sum(round_.deferred for round_ in timeline.rounds) == kinds[events.GroupDeferred]
    bars = [bar for round_ in timeline.rounds for bar in round_.bars]
    assert sum(bar.engine is not None for bar in bars) == kinds[events.Generated]
    assert sum(bar.tokens for bar in bars) == sum(getattr(event.body, "tokens", 0) for event in world.log)
    assert all(bar.start <= bar.end <= timeline.end for bar in bars)
    no_row_overlaps(timeline)


@pytest.mark.parametrize("seed", range(25))
def test_a_sample_that_went_on_has_a_bar_in_each_round(seed: int) -> None:
    world = ran(ContinueUnfinished(2, 2, prompt_overcommit=2.0), seed)
    timeline = fold(world.log)
    assert sum(round_.carried for round_ in timeline.rounds) == sum(
        isinstance(event.body, events.GroupCarried) for event in world.log
    )
    bars: dict[SampleId, list[Bar]] = {}
    for bar in (bar for round_ in timeline.rounds for bar in round_.bars):
        bars.setdefault(bar.sample, []).append(bar)
    for sample in (sample for batch in world.batches.values() for sample in batch):
        assert bars[sample][-1].fate in (Fate.KEPT, Fate.CARRIED)
        if not any(bar.fate is Fate.LOST for bar in bars[sample]):
            assert sum(bar.tokens for bar in bars[sample]) == world.made[sample][-1].end
    no_row_overlaps(timeline)


def no_row_overlaps(timeline: Timeline) -> None:
    rows: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for event in trace(timeline)["traceEvents"]:
        if event["ph"] == "X":
            rows.setdefault((event["pid"], event["tid"]), []).append((event["ts"], event["ts"] + event["dur"]))
    for row in rows.values():
        row.sort()
        assert all(one[1] <= other[0] for one, other in pairwise(row))
