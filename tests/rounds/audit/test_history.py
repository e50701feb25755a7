"""Response lengths folded from events: complete periods, each prompt once."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence

from longboat_runtime.rounds import events
from longboat_runtime.rounds.audit.history import WINDOW_PERIODS, LengthHistory
from longboat_runtime.rounds.events import Event
from longboat_runtime.rounds.tail_batching import TailBatching
from longboat_runtime.samples import SampleId
from tests.rounds.world import World

PROMPTS, GROUP = 2, 2
PERIOD = 3  # two short rounds and a long one


def run(steps: int, seed: int = 1) -> list[Event]:
    """Engines return the samples that they were told to stop before anything else happens."""
    world = World(TailBatching(PROMPTS, GROUP, prompt_overcommit=1.5, sample_overcommit=1.5), GROUP, steps=steps)
    world.start()
    pick = random.Random(seed).choice

    def give_back_and_pick(samples: Sequence[SampleId]) -> SampleId:
        while world.stopping:
            world.stopped(world.stopping[0])
        return pick(samples)

    world.run(give_back_and_pick)
    return world.log


def folded(log: list[Event]) -> LengthHistory:
    history = LengthHistory()
    for event in log:
        history.fold(event)
    return history


def test_a_window_holds_each_prompt_of_its_periods_once() -> None:
    log = run(steps=PERIOD * (WINDOW_PERIODS + 4))
    history = folded(log)
    assert history.period == WINDOW_PERIODS + 4
    window = history.window()
    assert len(window) == WINDOW_PERIODS * PERIOD * PROMPTS
    assert len({found.prompt for found in window}) == len(window)
    assert {found.period for found in window} == set(range(4, 4 + WINDOW_PERIODS))


def test_first_launches_later_attempts_and_what_was_trained() -> None:
    log = run(steps=PERIOD * 2)
    window = {found.prompt: found.lengths("") for found in folded(log).window()}
    launched = {e.body.prompt: e.body for e in log if isinstance(e.body, events.Launched) and e.body.attempt == 0}
    again = {e.body.prompt for e in log if isinstance(e.body, events.Launched) and e.body.attempt}
    trained = [sample for e in log if isinstance(e.body, events.StepCommitted) for sample in e.body.samples]
    assert again
    for prompt, lengths in window.items():
        assert lengths.launched == launched[prompt].samples == 3
        assert bool(lengths.later) == (prompt in again)
        assert sorted(lengths.trained) == sorted(3 + sample.index for sample in trained if sample.prompt == prompt)
        # The world's engines return stopped samples after 1 + index tokens.
        assert set(lengths.cut) <= {0, 1, 2, 3}


def test_what_a_skipped_step_did_not_train_is_not_among_what_was_trained() -> None:
    """A period ends with its long round, trained or not."""
    world = World(TailBatching(PROMPTS, GROUP, prompt_overcommit=1.5, sample_overcommit=1.5), GROUP, steps=PERIOD)
    world.start()
    world.publish()
    world.run_until_training()
    batch = set(world.ledger.rounds[1].kept)
    world.train(skipped=1, dropped=events.DropReason.NOT_FINITE)
    world.run()
    history = folded(world.log)
    assert history.period == 1
    assert {found.prompt for found in history.window() if not found.trained} == batch


def test_what_finished_while_it_was_being_stopped_is_not_cut() -> None:
    world = World(TailBatching(PROMPTS, GROUP, prompt_overcommit=1.5, sample_overcommit=1.5), GROUP, steps=PERIOD)
    world.start()

    def give_back_and_pick(samples: Sequence[SampleId]) -> SampleId:
        while world.stopping:
            world.stopped(world.stopping[0], finished=True)
        return samples[0]

    world.run(give_back_and_pick)
    for found in folded(world.log).window():
        lengths = found.lengths("")
        assert not lengths.cut
        assert sorted(lengths.finished) == [3, 4, 5]


def test_prompts_of_audit_rounds_are_known() -> None:
    world = World(TailBatching(PROMPTS, GROUP, 1.5, 1.0, audit_every=3), GROUP, steps=40)
    world.start()
    world.run()
    history = folded(world.log)
    calm = {e.body.round for e in world.log if isinstance(e.body, events.RoundOpened) and not e.body.racing}
    rounds = {
        e.body.prompt: e.body.round for e in world.log if isinstance(e.body, events.Launched) and not e.body.attempt
    }
    long = {e.body.round for e in world.log if isinstance(e.body, events.RoundOpened) and e.body.kind == "Long"}
    window = history.window()
    assert {found.prompt for found in window if found.audited} == {
        found.prompt for found in window if rounds[found.prompt] in calm - long
    }
    assert any(found.audited for found in window)


def test_a_snapshot_anywhere_changes_nothing() -> None:
    log = run(steps=PERIOD * 3)
    whole = folded(log)
    for cut in range(0, len(log), 17):
        history = LengthHistory.from_snapshot(json.loads(json.dumps(folded(log[:cut]).to_snapshot())))
        for event in log[cut:]:
            history.fold(event)
        assert history.to_snapshot() == whole.to_snapshot()
