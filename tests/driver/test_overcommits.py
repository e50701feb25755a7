"""promptOvercommitMode Auto through the driver."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from longboat_runtime.driver import overcommits
from longboat_runtime.driver.background_process import BackgroundFailed
from longboat_runtime.driver.loop import Driver, RunOutcome
from longboat_runtime.driver.overcommits import is_due
from longboat_runtime.interfaces import EngineStats, TrainReport, TrainRequest
from longboat_runtime.metrics.record import read_records
from longboat_runtime.rollout.step_times import StepTimes
from longboat_runtime.rounds import events
from tests.driver.fakes import Site, make_spec
from tests.driver.runs import crash_once_saved, history, manifests

pytestmark = pytest.mark.extended

PROMPTS = 2
ROUNDS = {
    "policy": "TailBatching",
    "prompt_overcommit": 1.5,
    "prompt_overcommit_mode": "Auto",
    "steps": 60,
    "prompts_per_round": PROMPTS,
}


def driver_of(site: Site, steps: int = 1000, seconds: float = 10.0, **arguments: object) -> Driver:
    """A driver whose engines have seen `steps` steps."""
    driver = site.driver(**arguments)

    async def stats() -> list[EngineStats]:
        return [EngineStats("engine-0", 0, 0, 0.0, 0, 100, 1, 10_000, {4: StepTimes(steps, seconds)})]

    site.fleet.stats = stats
    return driver


def awaits_a_choice(driver: Driver, site: Site, step: int) -> None:
    """Stops the trainer before `step` until a factor is chosen: rounds of these components are faster than the choice."""
    chosen, train = asyncio.Event(), site.trainer.train
    overcommits = driver._steps.overcommits
    happened = overcommits._happened

    def heard(body: events.Body) -> None:
        happened(body)
        chosen.set()

    async def waiting(request: TrainRequest) -> TrainReport:
        if request.step == step:
            await chosen.wait()
        return await train(request)

    overcommits._happened, site.trainer.train = heard, waiting


def choices(site: Site) -> list[events.OvercommitChosen]:
    return [body for body in history(site) if isinstance(body, events.OvercommitChosen)]


@pytest.mark.parametrize("first_factor", [None, 1.5])
async def test_a_factor_is_chosen_and_reported(tmp_path: Path, first_factor: float | None) -> None:
    site = Site(tmp_path, make_spec(**{**ROUNDS, "prompt_overcommit": first_factor}))
    driver = driver_of(site)
    awaits_a_choice(driver, site, 30)
    assert await driver.run() is RunOutcome.DONE
    first, *_ = choices(site)
    assert set(first.predicted) == {"1", "1.125", "1.25", "1.5"}
    assert format(first.factor, "g") in first.predicted
    assert site.broker.status.training.prompt_overcommit.startswith(f"{choices(site)[-1].factor:g}: ")
    told = [record.metrics.get("tail/prompt_overcommit") for record in read_records(tmp_path)]
    assert told[-1] == choices(site)[-1].factor
    assert told[0] is None


async def test_the_choice_survives_the_driver(tmp_path: Path) -> None:
    site = Site(tmp_path, make_spec(**ROUNDS))
    driver = driver_of(site)
    awaits_a_choice(driver, site, 30)
    crash_once_saved(site, step=40, saved=38)
    with pytest.raises(ExceptionGroup):
        await driver.run()
    saved = manifests(tmp_path)[-1]["ledger"]
    assert saved["overcommit"] is not None
    driver = driver_of(site, previous=site.broker.status)
    site.trainer.crash = (39, "before")
    with pytest.raises(ExceptionGroup):
        await driver.run()
    assert driver._view.overcommit == saved["overcommit"]
    assert site.broker.status.training.prompt_overcommit is not None


@pytest.mark.parametrize("mode", ["Fixed", None])
async def test_a_fixed_factor_stays(tmp_path: Path, mode: str | None) -> None:
    site = Site(tmp_path, make_spec(**{**ROUNDS, "steps": 9, "prompt_overcommit_mode": mode}))
    assert await driver_of(site).run() is RunOutcome.DONE
    assert not choices(site)


async def test_nothing_is_chosen_before_engines_have_shown_what_a_step_takes(tmp_path: Path) -> None:
    site = Site(tmp_path, make_spec(**{**ROUNDS, "steps": 9}))
    assert await driver_of(site, steps=5).run() is RunOutcome.DONE
    assert not choices(site)


async def test_a_choice_that_fails_ends_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failed = []

    async def in_background(work: object) -> None:
        failed.append(work)
        raise BackgroundFailed("exit status 1")

    monkeypatch.setattr(overcommits, "in_background", in_background)
    site = Site(tmp_path, make_spec(**{**ROUNDS, "steps": 9}))
    assert await driver_of(site).run() is RunOutcome.DONE
    assert failed
    assert not choices(site)


def test_choices_become_ever_rarer() -> None:
    assert [period for period in range(33) if is_due(period)] == [1, 2, 4, 8, 16, 24, 32]
