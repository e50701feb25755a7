"""What a driver does about environments that fail: it goes on without their groups, says so, and ends if there is nothing else."""

from __future__ import annotations

import random
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from longboat_crds.environments import EnvironmentSpec
from longboat_crds.job import RLJobSpec
from longboat_crds.problems import SpecProblem
from longboat_crds.reasons import Reason
from longboat_runtime.driver.episode_outcomes import EpisodeOutcomes
from longboat_runtime.driver.evaluation import Evaluation
from longboat_runtime.driver.flow import as_event
from longboat_runtime.driver.outcome import RunOutcome
from longboat_runtime.episodes import fleet as fleet_module
from longboat_runtime.episodes.fleet import EpisodeFleet
from longboat_runtime.episodes.play import EpisodeReport
from longboat_runtime.episodes.protocol import EpisodePods
from longboat_runtime.metrics.record import read_records
from longboat_runtime.rollout.protocol import RolloutFleet
from longboat_runtime.rounds import events
from longboat_runtime.rounds.audit.history import PromptHistory
from longboat_runtime.rounds.audit.lengths import PromptLengths
from longboat_runtime.rounds.events import DropReason
from longboat_runtime.rounds.rules import MOST_ENVIRONMENT_LOSSES
from longboat_runtime.samples import (
    FinishedSample,
    FinishReason,
    LossCause,
    LostSample,
    SampleId,
    SegmentSize,
    StartedSample,
)
from tests.driver.fakes import make_spec
from tests.driver.runs import history, part, trained
from tests.driver.test_episodes import CONFIG, EpisodesSite, PlayingActor
from tests.episodes.clusters import AnyTask, Engines, FakeCluster


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet_module, "_WATCH_SECONDS", 0.001)
    monkeypatch.setattr(fleet_module, "RETRY_SECONDS", 0.0)


class FailingActor(PlayingActor):
    """Its environment fails with some rows, held-out ones or others; or its server goes."""

    rows: Sequence[tuple[int, bool]] = ()
    server_goes = False

    def _report(self, report: FinishedSample | LostSample) -> EpisodeReport:
        if (report.id.row, report.evaluation) in self.rows:
            report = LostSample(
                report.id,
                "ValueError: no door",
                report.evaluation,
                cause=LossCause.ENVIRONMENT,
                held_up=self.server_goes,
            )
        return super()._report(report)


class FailingSite(EpisodesSite):
    def __init__(self, root: Path, spec: RLJobSpec, *rows: tuple[int, bool]) -> None:
        maze = EnvironmentSpec(name="maze", function="games:play")
        super().__init__(root, spec.model_copy(update={"environments": [maze]}))
        self.rows, self.server_goes = rows, False

    def open_episodes(self) -> EpisodePods:
        dice = random.Random(self.incarnation)

        def actor(name: str, config: Any) -> FailingActor:
            made = FailingActor(name, self, dice)
            made.rows, made.server_goes = self.rows, self.server_goes
            return made

        self.cluster = FakeCluster(actor)
        self.cluster.add("a", slots=4)
        engines = cast("RolloutFleet", Engines())
        self.episodes = EpisodeFleet({"games": CONFIG}, AnyTask(), engines, self.store, self.cluster)
        return self.episodes


async def test_a_row_that_fails_is_dropped_and_told(tmp_path: Path) -> None:
    site = FailingSite(tmp_path, make_spec(), (1, False))
    driver = site.driver()
    outcomes = part(driver, EpisodeOutcomes)
    assert await driver.run() is RunOutcome.DONE
    await site.episodes.close()
    dropped = [body for body in history(site) if isinstance(body, events.GroupDropped)]
    assert dropped
    assert {(body.prompt.row, body.reason) for body in dropped} == {(1, DropReason.ENVIRONMENT_ERROR)}
    assert not [sample for _, samples in trained(site) for sample in samples if sample.row == 1]
    (problem,) = outcomes.status().problems
    assert (problem.reason, problem.field) == (Reason.ENVIRONMENT_ERRORS, "spec.environments[0]")
    assert "row 1 of the dataset" in problem.message
    assert "no door" in problem.message
    records = [record.metrics for record in read_records(tmp_path)]
    assert max(metrics.get("environment/dropped_share/environment_error", 0) for metrics in records) > 0
    assert max(metrics.get("environment/losses", 0) for metrics in records) >= MOST_ENVIRONMENT_LOSSES
    assert all(0 <= metrics["environment/waiting_share"] <= 1 for metrics in records if metrics.get("training/round"))


@pytest.mark.parametrize(
    ("server_goes", "policy", "field", "why"),
    [
        (False, "Synchronous", "spec.environments[0]", "no door"),
        (False, "TailBatching", "spec.environments[0]", "no door"),
        (True, "Synchronous", "spec.environments", "Look at these pods"),
    ],
)
async def test_a_round_in_which_everything_fails_ends_the_job(
    tmp_path: Path, server_goes: bool, policy: str, field: str, why: str
) -> None:
    site = FailingSite(tmp_path, make_spec(policy=policy), *((row, False) for row in range(100)))
    site.server_goes = server_goes
    driver = site.driver()
    with pytest.raises(ExceptionGroup) as caught:
        await driver.run()
    await site.episodes.close()
    problem = _first(caught.value)
    assert (problem.reason, problem.field) == (Reason.ENVIRONMENT_ERRORS, field)
    assert "No group of round 1 could be played" in problem.message
    assert why in problem.message


def _first(error: BaseException) -> SpecProblem:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    assert isinstance(error, SpecProblem)
    return error


async def test_held_out_episodes_that_fail_are_counted_and_not_scored(tmp_path: Path) -> None:
    site = FailingSite(tmp_path, make_spec(evaluation={"every_steps": 5}), (0, True))
    driver = site.driver()
    assert part(driver, Evaluation)
    assert await driver.run() is RunOutcome.DONE
    await site.episodes.close()
    records = [record.metrics for record in read_records(tmp_path)]
    counted = [metrics["val/environment_errors"] for metrics in records if "val/environment_errors" in metrics]
    assert counted
    assert set(counted) == {1.0}
    assert all("val/score/mean" in metrics for metrics in records if "val/environment_errors" in metrics)


SAMPLE = SampleId(0, 1, 0, 0)


def test_reports_of_episodes_are_events() -> None:
    segments = (SegmentSize(20, 7), SegmentSize(9, 5))
    done = FinishedSample(
        SAMPLE, 2, 12, FinishReason.STOP, (), "pod", False, segments, turns=4, environment_seconds=1.5,
        environment_cpu_seconds=0.25,
    )  # fmt: skip
    assert as_event(done, stopping=False, pausing=False) == events.Generated(
        SAMPLE, 2, 12, FinishReason.STOP, (), "pod", segments, 4, 1.5, 0.25
    )
    stopped = FinishedSample(SAMPLE, 2, 3, FinishReason.ABORT, (), "pod", environment_seconds=0.5)
    assert as_event(stopped, stopping=True, pausing=False) == events.Stopped(SAMPLE, 3, "pod", environment_seconds=0.5)
    lost = LostSample(SAMPLE, "x" * 1000, cause=LossCause.ENVIRONMENT, held_up=True)
    event = as_event(lost, stopping=False, pausing=False)
    assert event == events.Lost(SAMPLE, "x" * 500, cause=LossCause.ENVIRONMENT, held_up=True)
    assert as_event(StartedSample(SAMPLE, 2.0), stopping=False, pausing=False) == events.EpisodeStarted(SAMPLE, 2.0)


async def test_seconds_in_environments_are_audited_beside_tokens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads, read = set(), PromptHistory.milliseconds

    def milliseconds(prompt: PromptHistory, domain: str) -> PromptLengths:
        threads.add(threading.current_thread())
        return read(prompt, domain)

    monkeypatch.setattr(PromptHistory, "milliseconds", milliseconds)
    site = FailingSite(tmp_path, make_spec(policy="TailBatching", prompt_overcommit=2.0, steps=6))
    driver = site.driver()
    assert await driver.run() is RunOutcome.DONE
    await site.episodes.close()
    records = [record.metrics for record in read_records(tmp_path)]
    audited = [metrics for metrics in records if "tail/length_bias/prompts" in metrics]
    assert audited
    for metrics in audited:
        assert metrics["tail/seconds_bias/prompts"] == metrics["tail/length_bias/prompts"]
    assert threads == {threading.main_thread()}, "events change histories there"
