"""Learned timeouts in the driver: limits of a round are frozen when it opens, and what is learned is a fold of recorded events."""

from pathlib import Path
from typing import Any

import pytest

from longboat_crds.job import RLJobSpec
from longboat_crds.reward_kinds import RewardIsolation
from longboat_crds.rewards import RewardSpec
from longboat_graders.messages import IsolationInForce
from longboat_runtime.driver.outcome import RunOutcome
from longboat_runtime.eventlog import LogPosition, surviving
from longboat_runtime.metrics.record import read_records
from longboat_runtime.reward.timeouts import LearnedTimeouts
from longboat_runtime.rounds import events
from longboat_runtime.samples import SampleId, TimeLimit
from tests.driver.fakes import FakeSource, Site, make_spec
from tests.driver.runs import crash_once_saved, history, manifests, trained
from tests.support.log import logged

REWARD = RewardSpec.model_validate(
    {"name": "main", "function": "m:f", "learnedTimeout": {"minSeconds": 0.1, "factor": 1.0, "auditFraction": 0.3}}
)


def spec(**rounds: Any) -> RLJobSpec:
    return make_spec(**{"steps": 20, **rounds}).model_copy(update={"rewards": [REWARD]})


async def finished(root: Path, **rounds: Any) -> Site:
    site = Site(root, spec(**rounds))
    assert await site.driver().run() is RunOutcome.DONE
    return site


def folded(site: Site, position: LogPosition) -> LearnedTimeouts:
    timeouts = LearnedTimeouts([REWARD], FakeSource().domain)
    for event in surviving(site.root, position):
        timeouts.fold(event)
    return timeouts


@pytest.mark.parametrize("policy", ["Synchronous", "TailBatching", "ContinueUnfinished", "BoundedAsync"])
async def test_a_manifest_holds_what_its_log_teaches(tmp_path: Path, policy: str) -> None:
    site = await finished(tmp_path, policy=policy)
    found = manifests(tmp_path)
    assert len(found) >= 5
    for manifest in found:
        assert folded(site, LogPosition(**manifest["log"])).to_snapshot() == manifest["timeouts"]
    assert found[-1]["timeouts"]["rewards"]["main"]["total"]["grades"] > 0


async def test_grades_have_the_limits_that_were_known_when_their_round_opened(tmp_path: Path) -> None:
    site = await finished(tmp_path)
    timeouts = LearnedTimeouts([REWARD], FakeSource().domain)
    limited = round_ = 0
    for body in history(site):
        if isinstance(body, events.Generated):
            expected = timeouts.limits(body.sample, round_)["main"]
            assert site.rewards.limits[body.sample] == expected
            limited += expected.seconds is not None
        if isinstance(body, events.Graded):
            limit = site.rewards.limits[body.sample]
            assert (body.times["main"].limit, body.times["main"].audit) == (limit.seconds, limit.audit)
            if body.times["main"].killed:
                assert body.parts == {"main": None}
        if isinstance(body, events.RoundOpened):
            round_ = body.round
        timeouts.fold(logged(body))
    assert limited > 20


async def stopped_and_resumed(root: Path, policy: str) -> tuple[Site, dict[SampleId, TimeLimit]]:
    """A job whose driver died before step 11, with the checkpoint of step 8; and the limits that its first driver gave."""
    site = Site(root, spec(policy=policy))
    driver = site.driver()
    crash_once_saved(site, step=11, saved=8)
    with pytest.raises(ExceptionGroup):
        await driver.run()
    before = site.rewards.limits
    assert await site.driver().run() is RunOutcome.DONE
    return site, before


async def test_a_job_that_resumes_learns_what_it_would_have_learned_without_the_stop(tmp_path: Path) -> None:
    """All that is known, bit for bit, and the limits of all grades, though those of steps 9 and 10 are repeated in another order."""
    whole = await finished(tmp_path / "whole")
    site, before = await stopped_and_resumed(tmp_path / "stopped", "Synchronous")
    assert [samples for _, samples in trained(site)] == [samples for _, samples in trained(whole)]
    assert manifests(site.root)[-1]["timeouts"] == manifests(whole.root)[-1]["timeouts"]
    assert {**before, **site.rewards.limits} == whole.rewards.limits
    repeated = before.keys() & site.rewards.limits.keys()
    assert repeated
    assert all(before[sample] == site.rewards.limits[sample] for sample in repeated)


async def test_rounds_that_a_resumed_driver_goes_on_with_keep_their_limits(tmp_path: Path) -> None:
    site, before = await stopped_and_resumed(tmp_path, "BoundedAsync")
    (saved,) = (manifest["ledger"] for manifest in manifests(tmp_path) if manifest["ledger"]["step"] == 8)
    under_way = {tuple(group["prompt"]) for group in saved["groups"]}
    repeated = {sample for sample in before.keys() & site.rewards.limits.keys() if tuple(sample.prompt) in under_way}
    assert len(repeated) > len(under_way)
    assert any(before[sample].seconds is not None for sample in repeated)
    assert all(before[sample] == site.rewards.limits[sample] for sample in repeated)


async def test_metrics_and_status_say_what_is_learned(tmp_path: Path) -> None:
    site = Site(tmp_path, spec())
    driver = site.driver()
    site.rewards.isolation = {"main": IsolationInForce(RewardIsolation.AUTO)}
    assert await driver.run() is RunOutcome.DONE
    last = read_records(tmp_path)[-1].metrics
    assert 0.0 <= last["reward/timeouts/main/wrong_kill_rate_low"] <= last["reward/timeouts/main/wrong_kill_rate_high"]
    assert "reward/timeouts/main/domains/odd/kill_rate" in last
    (reward,) = site.broker.status.training.rewards
    assert {limit.domain for limit in reward.learned_limits} == {"odd", "even"}
    assert all(" s in the middle, " in limit.limit for limit in reward.learned_limits)


async def test_without_learned_timeouts_events_are_what_they_were(tmp_path: Path) -> None:
    site = Site(tmp_path, make_spec())
    assert await site.driver().run() is RunOutcome.DONE
    graded = [e for e in surviving(tmp_path, LogPosition(**manifests(tmp_path)[-1]["log"])) if "Graded" in str(e)]
    assert graded
    assert all("times" not in event.to_json() for event in graded)
    assert manifests(tmp_path)[-1]["timeouts"] == {}
    assert site.rewards.limits == {}
