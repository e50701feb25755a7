"""Every part of a manifest is of one moment: what the log up to its position amounts to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from longboat_crds.rewards import RewardSpec
from longboat_runtime.driver import shape_plan
from longboat_runtime.driver.outcome import RunOutcome
from longboat_runtime.eventlog import LogPosition, surviving
from longboat_runtime.reward.timeouts import LearnedTimeouts
from longboat_runtime.rollout.parallelism import Bounds
from longboat_runtime.rollout.round_seconds import Limits
from longboat_runtime.rounds import measurements
from longboat_runtime.rounds.audit.history import LengthHistory
from longboat_runtime.rounds.ledger import Ledger
from longboat_runtime.rounds.policies import races_per_period
from longboat_runtime.rounds.snapshot import to_snapshot
from longboat_runtime.rounds.view import View
from tests.driver.fakes import FakeSource, Site, make_spec
from tests.driver.runs import history, manifests, with_loads
from tests.driver.test_learned_timeouts import REWARD
from tests.driver.test_reshapes import ADAPTIVE, TimedSite

SIZES = Bounds((1, 2, 4), 1)


def replayed(site: Site, position: LogPosition, rewards: list[RewardSpec]) -> dict[str, Any]:
    """Folds the log up to a position, from nothing."""
    spec = site.spec
    ledger, lengths = Ledger(spec.algorithm.group_size, spec.rounds.steps), LengthHistory()
    timeouts = LearnedTimeouts(rewards, FakeSource().domain)
    limits = Limits(spec.rollout.max_sequences, spec.rollout.sampling.max_tokens)
    shapes = shape_plan.ShapePlan(SIZES, limits, {}, None, View(ledger), SIZES.start)
    for entry in surviving(site.root, position):
        if not isinstance(entry.body, measurements.Measurement):
            assert ledger.apply(entry)
        for fold in (lengths, timeouts, shapes) if races_per_period(spec) else (timeouts, shapes):
            fold.fold(entry)
    return {
        "ledger": to_snapshot(ledger),
        "lengths": lengths.to_snapshot(),
        "timeouts": timeouts.to_snapshot(),
        "parallelism": shapes.to_snapshot(),
    }


@pytest.mark.parametrize("policy", ["Synchronous", "TailBatching", "ContinueUnfinished", "BoundedAsync"])
async def test_a_manifest_is_of_the_moment_of_its_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, policy: str
) -> None:
    """Checkpoints are written while later rounds run, and engines are reshaped meanwhile."""
    monkeypatch.setattr(shape_plan, "bounds_of", lambda job: SIZES)
    spec = make_spec(policy=policy, steps=12, checkpoint={"every_steps": 1, "keep": 20})
    rollout = spec.rollout.model_copy(update={"parallelism": ADAPTIVE})
    site = TimedSite(tmp_path, spec.model_copy(update={"rollout": rollout, "rewards": [REWARD]}))
    assert await with_loads(site).driver().run() is RunOutcome.DONE
    assert any(isinstance(body, measurements.Reshaped) for body in history(site))
    states = manifests(tmp_path)
    assert len(states) == 12
    for state in states:
        expected = replayed(site, LogPosition(**state["log"]), [REWARD])
        assert {part: state[part] for part in expected} == expected
    assert states[-1]["parallelism"]["tensor_parallel"] > 1
    assert states[-1]["timeouts"]["rewards"]["main"]["total"]["grades"] > 0
