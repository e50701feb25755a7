"""A job resumes from the checkpoint of a job with any other policy, whatever that job left unfinished."""

from __future__ import annotations

import random
from itertools import permutations

import pytest

from longboat_runtime.rounds.bounded_async import BoundedAsync
from longboat_runtime.rounds.continue_unfinished import ContinueUnfinished
from longboat_runtime.rounds.policy import Policy
from longboat_runtime.rounds.snapshot import from_snapshot, to_snapshot
from longboat_runtime.rounds.synchronous import Synchronous
from longboat_runtime.rounds.tail_batching import TailBatching
from tests.rounds.world import World

STEPS, PROMPTS, GROUP = 6, 2, 2
POLICIES: tuple[Policy, ...] = (
    Synchronous(PROMPTS, GROUP),
    TailBatching(PROMPTS, GROUP, prompt_overcommit=1.5, sample_overcommit=1.5),
    ContinueUnfinished(PROMPTS, GROUP, prompt_overcommit=1.5),
    BoundedAsync(PROMPTS, GROUP, max_staleness=2),
)
ON_POLICY = (Synchronous, TailBatching)


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize(("first", "second"), [*permutations(POLICIES, 2)], ids=lambda policy: type(policy).__name__)
def test_every_step_trains_a_full_batch_of_its_own_prompts(first: Policy, second: Policy, seed: int) -> None:
    chance = random.Random(seed)
    world = World(first, GROUP, steps=STEPS)
    world.start()
    world.run(chance.choice, steps=chance.randint(1, STEPS - 1))
    before = world.ledger.step
    ledger = from_snapshot(world.boundary[0])
    ledger.start_over()
    world.boundary = (to_snapshot(ledger), *world.boundary[1:])
    world.policy = second
    world.start()
    world.run(chance.choice)
    assert world.ledger.step == STEPS
    assert [len(samples) for samples in world.batches.values()] == [PROMPTS * GROUP] * STEPS
    if isinstance(second, ON_POLICY):
        assert all(world.oldest[step] == 0 for step in range(before + 1, STEPS + 1))
    assert not world.ledger.groups
